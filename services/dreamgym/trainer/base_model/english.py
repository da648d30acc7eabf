"""Ordinary words that deserve one token each although the worlds may not use them: a customer's text will."""

from __future__ import annotations

_LOWER = """
a about above across action actions add after again agent air all already also an and any are arm around arrive as ask
at away back be because bedroom before behind below beside best better between big black blue bottom bright bring brown
but buy by can cannot carry carrying change check clear click close closed cold come contains continue could current
dark do does done down drop during each east eat edge eight either empty end enter error even every exit failure far
fast few fill find first five floor follow for found four free from front full get give glass go goal gold gone good got
grab green ground had half hand hands happens hard has have he head hear heavy help her here high hold holding hot house
how i if in inside instruction into is it its just keep key kind kitchen know large last left less let level light like
list little living long look looking low made make many may me metal middle minute more most move much must my name near
need never new next nine no none normal north not nothing now number object objects of off old on once one only onto
open opened or order other out over page part past path pick piece place places please point press price put quickly
quiet read ready red right room round same save say score search second see seems select send set seven shall she short
should show shut side silver six size slowly small so some something soon south special stand start state step still
stop such take task tell ten than that the their them then there these they thing things third this those three time to
together too top toward turn turned turns two type under until up upon use used using very visit wait walk wall want
warm was water way we well west wet what when where which while white who will with within without wood wooden word work
world would yes yet you your bathroom office garden success valid impossible invalid empties facing special hallway
middle it's there's sheet room's whole another anything everything its themselves against along among amount answer
apply area available been begin being buttons cart category choose color complete confirm contain content cost
description detail details different different discard edit email enough example false fields filter form given home
image input item items label line link login main match menu message mode needed option options page password percent
possible previous product products query quantity rating remove result results return review reviews role save screen
shop shopping sort status submit tab text title total true update url user value view website window
"""
_CAPITALISED = "You The Your Task World There It On In At Looking Around Nothing Now Next This That Here After If To"

WORDS: tuple[str, ...] = tuple(_LOWER.split())
"""Lower-case words."""

CAPITALISED: tuple[str, ...] = tuple(_CAPITALISED.split())
"""Words that open a line."""
