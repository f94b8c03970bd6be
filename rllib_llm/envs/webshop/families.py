"""Synthetic families of products that the shop sells."""

from __future__ import annotations

import dataclasses

ATTRIBUTES = 4
"""Number of attributes of a product, from those of its family."""

_COLORS = ("red", "blue", "green", "black", "white", "grey", "brown", "pink")


@dataclasses.dataclass(frozen=True)
class Family:
    """Types of products with common attributes and options.

    Attributes:
        department: The wider category.
        name: The category.
        types: Types of products, two nouns each; types of a family may share one.
        attributes: Possible attributes of its products.
        options: Names and values of the options at purchase.
        prices: Lowest and highest price, in dollars.
    """

    department: str
    name: str
    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    prices: tuple[float, float]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


FAMILIES = (
    Family(
        "home",
        "lighting",
        ("desk lamp", "floor lamp", "wall lamp", "reading lamp"),
        _listed(
            "dimmable, wooden, cordless, adjustable, rustic, compact, "
            "energy saving, shatter proof, remote controlled, warm white"
        ),
        {"color": _COLORS, "size": ("small", "medium", "large", "extra large")},
        (12, 120),
    ),
    Family(
        "kitchen",
        "drinkware",
        ("coffee mug", "tea cup", "water bottle", "wine glass"),
        _listed(
            "insulated, stackable, ceramic, handmade, unbreakable, light, "
            "leak proof, dishwasher safe, double walled, bpa free"
        ),
        {"color": _COLORS, "pack": ("single", "set of 2", "set of 4", "set of 6")},
        (6, 60),
    ),
    Family(
        "clothing",
        "footwear",
        ("running shoe", "hiking boot", "house slipper", "beach sandal"),
        _listed(
            "waterproof, padded, vegan, reflective, washable, flexible, "
            "slip resistant, quick drying, arch support, memory foam"
        ),
        {"color": _COLORS, "size": ("6", "7", "8", "9", "10", "11", "12")},
        (15, 180),
    ),
    Family(
        "home",
        "bedding",
        ("bed sheet", "pillow cover", "throw blanket", "mattress topper"),
        _listed(
            "hypoallergenic, breathable, quilted, striped, organic, soft, "
            "machine washable, wrinkle free, high density, heavy duty"
        ),
        {"color": _COLORS, "size": ("twin", "full", "queen", "king")},
        (14, 150),
    ),
    Family(
        "office",
        "furniture",
        ("office chair", "standing desk", "book shelf", "filing cabinet"),
        _listed(
            "ergonomic, foldable, lockable, steel, modern, narrow, "
            "height adjustable, easy assembly, scratch resistant, solid wood"
        ),
        {
            "color": ("oak", "walnut", "black", "white", "grey"),
            "style": ("plain", "with wheels", "with drawers", "with armrests"),
        },
        (40, 400),
    ),
    Family(
        "sports",
        "fitness",
        ("yoga mat", "foam roller", "jump rope", "exercise band"),
        _listed(
            "textured, portable, antibacterial, durable, thick, latex, "
            "non slip, moisture resistant, extra long, eco friendly"
        ),
        {"color": _COLORS, "strength": ("light", "middle", "strong", "very strong")},
        (8, 90),
    ),
    Family(
        "beauty",
        "hair care",
        ("hair brush", "hair mask", "hair oil", "hair clip"),
        _listed(
            "nourishing, unscented, detangling, moisturizing, gentle, shiny, "
            "sulfate free, cruelty free, long lasting, travel size"
        ),
        {
            "scent": ("rose", "lemon", "coconut", "mint", "vanilla", "none"),
            "pack": ("single", "set of 2", "set of 3"),
        },
        (5, 50),
    ),
    Family(
        "electronics",
        "audio",
        ("desk speaker", "travel headset", "studio microphone", "wall speaker"),
        _listed(
            "wireless, rechargeable, waterproof, noiseless, compact, loud, "
            "fast charging, high resolution, hands free, plug and play"
        ),
        {
            "color": ("black", "white", "silver", "blue", "red"),
            "cable": ("1 meter", "2 meters", "3 meters", "5 meters"),
        },
        (18, 300),
    ),
    Family(
        "grocery",
        "snacks",
        ("fruit bar", "trail mix", "rice cracker", "potato chip"),
        _listed(
            "organic, salted, crunchy, roasted, kosher, vegan, "
            "gluten free, sugar free, non gmo, low calorie"
        ),
        {
            "flavor": ("apple", "cherry", "honey", "cocoa", "lemon", "cinnamon"),
            "size": ("4 ounce", "8 ounce", "16 ounce", "32 ounce"),
        },
        (3, 45),
    ),
    Family(
        "garden",
        "planting",
        ("flower pot", "garden hose", "watering can", "plant stand"),
        _listed(
            "rustproof, frostproof, hanging, glazed, stackable, sturdy, "
            "self watering, uv resistant, hand painted, kink free"
        ),
        {
            "color": ("terracotta", "green", "grey", "white", "black", "blue"),
            "size": ("small", "medium", "large", "extra large"),
        },
        (7, 130),
    ),
)

USES = (
    *("office", "bedroom", "kitchen", "garage", "balcony", "studio"),
    *("travel", "gift", "winter", "summer", "weekend", "holiday"),
)
"""Nouns at the end of titles."""

REMARKS = (
    "Arrived sooner than expected.",
    "Does what it should.",
    "My sister ordered one, too.",
    "The box was dented, the inside was fine.",
    "Not quite as in the picture.",
    "I would buy it again.",
    "Had to send the first one back.",
    "Good value.",
)
"""Sentences of reviews, which are unrelated to instructions."""
