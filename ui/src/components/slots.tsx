// The slots of a budget: how many are taken, in use, held and free.
import type { TransferBudget } from '../api'
import { formatNumber } from '../format'
import { describeSlots } from '../transfers'
import { Figure, Meter } from './panel'

/** FleetSlots is the key number of the fleet's budget. */
export function FleetSlots({ budget }: { budget: TransferBudget }) {
  const slots = describeSlots(budget)
  return (
    <Figure
      label={budget.limit === undefined ? 'Imports (no fleet-wide limit)' : 'Slots of the fleet'}
      note={
        budget.limit !== undefined && (
          <>
            <SlotMeter budget={budget} of="the fleet" />
            <span>{slots.notes.join(', ')}</span>
          </>
        )
      }
    >
      {formatNumber(slots.taken)}
      {budget.limit !== undefined && <span class="of"> of {formatNumber(budget.limit)}</span>}
    </Figure>
  )
}

/** SlotMeter draws what is in use, and what else is taken. */
export function SlotMeter({ budget, of }: { budget: TransferBudget; of: string }) {
  if (budget.limit === undefined) return null
  const slots = describeSlots(budget)
  return <Meter value={budget.used} held={slots.taken} max={budget.limit} label={`Slots of ${of}: ${[slots.text, ...slots.notes].join(', ')}`} />
}
