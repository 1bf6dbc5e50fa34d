"""The studies of `layerrope study NAME`: what each trains, what it would cost, and what its runs say."""

from __future__ import annotations

from layerrope.studies.plan import Ask, Cell, Plan
from layerrope.studies.recipes import RECIPES, plan_study

__all__ = ["RECIPES", "Ask", "Cell", "Plan", "plan_study"]
