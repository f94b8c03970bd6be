"""Shopping in text and on web pages, with WebShop's pages, actions and reward."""

from rllib_llm.envs.webshop.env import WebShopText
from rllib_llm.envs.webshop.pages import WebShopPages

__all__ = ["WebShopPages", "WebShopText"]
