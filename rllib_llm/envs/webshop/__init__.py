"""Shopping in text: WebShop's pages, actions and reward on a synthetic catalogue."""

from rllib_llm.envs.webshop.env import WebShopText

__all__ = ["WebShopText"]
