"""Every mistake a user can make, by room, and the rule the message must state.

Run as a module it makes each mistake and prints what was raised, as JSON.
"""

from . import attention, compression, concentration, dynamics, icl, measures, prompts, runs

MISTAKES = {
    name: mistake
    for room in (measures, attention, prompts, concentration, icl, dynamics, compression, runs)
    for name, mistake in room.MISTAKES.items()
}
