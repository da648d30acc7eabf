"""The nouns of the procedural worlds.

Any noun may be a place, an object, a tool or a device in some world, so a model that learns on these worlds can
not lean on what a word usually means: it has to read. Each noun with a number from 1 to 6 is one token
(`tokenizer.py`), because models of this size copy one token reliably and a name in pieces poorly.
"""

from __future__ import annotations

HOUSEHOLD = """
alarmclock apple armchair ashtray basket bathtub bathtubbasin bed bench blanket blender blinds book bookend bottle
bowl box bread broom brush bucket butterknife cabinet candle cart carpet cd cellphone chair chest clock cloth
coaster coffeemachine coffeetable couch countertop creditcard cup cupboard curtain cushion desk desklamp diningtable
dish dishsponge dishwasher drawer dresser egg fan faucet floorlamp footstool fork freezer fridge fryingpan
garbagecan glassbottle hamper handtowel handtowelholder heater hook houseplant iron jar jug kettle key keychain
knife ladle lamp laptop laundryhamper lettuce lid lightswitch mat mattress microwave mirror mug napkin newspaper
ottoman oven painting pan papertowelroll pen pencil peppershaker photo pillow pitcher plate plunger pot potato
quilt radio remotecontrol rug safe saltshaker scrubbrush shelf shower sidetable sink sinkbasin soap soapbar
soapbottle sofa spatula sponge spoon spraybottle statue stool stove stoveburner table tablecloth teapot teddybear
television tissuebox toaster toilet toiletpaper toiletpaperhanger tomato towel towelholder tray tvstand vase
wardrobe washer watch wateringcan whisk window winebottle
"""

ELSEWHERE = """
abacus acorn album anchor anvil apron arrow axe badge bag bagel ball balloon banjo banner barrel baseballbat
basketball battery beaker bean bell belt bicycle bin binder biscuit boat bolt bone boot brick bridge bracelet
briefcase bulb burner button cabbage cable cage cake calculator camera canoe canteen card carrot case casket chalk
cheese cherry chisel cigar coat coil coin comb compass cone cookie cork counter crate crayon crown crystal cube
dagger dial diary dice disk doll door drill drum dustpan easel envelope eraser feather fence file filter flag
flask flower flute folder funnel furnace gadget gate gear gem glove glue goblet grill guitar hammer handle harp
hat helmet hinge hive hoe horn hose icebox ink instrument jacket journal keyboard kiln kite ladder lantern leaf
ledger lemon lens lever locker locket loom magazine magnet mallet map marble mask medal meter mill monitor mop
mortar motor nail necklace needle nest net notebook nut oar onion orange orb pad paddle paint pallet pantry paper
parcel peach pear pebble pedestal phone piano pickle pin pipe plank plant plier pouch press printer projector
pump puppet purse puzzle rack rake razor recorder ribbon ring robe rock rocket rod roller rope ruler saddle sack
saw scale scanner scarf scissors scroll screw screwdriver seed shed shield ship shirt shoe shovel silo skate
socket spade spear speaker spool stamp stand stapler stick stone string suitcase switch sword tablet tank
tape telescope tennisracket tent thermos thimble ticket tile tin tire tongs toolbox torch toy trough trumpet
trunk tube turnip umbrella valve violin wagon wallet wand wheel whistle wrench yarn
"""


def _unique(text: str) -> tuple[str, ...]:
    return tuple(sorted({word for word in text.split() if word.isalpha()}))


NOUNS: tuple[str, ...] = _unique(HOUSEHOLD + ELSEWHERE)
"""All nouns, sorted, lower case, letters only."""
