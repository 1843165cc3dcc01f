import { formatNumber } from '../format'
import { hrefWith, param } from '../route'
import '../styles/choices.css'

export interface ChoiceOption {
  /** The parameter's value; empty for all. */
  value: string
  label: string
  /** How many there are; absent where that is unknown. */
  count?: number
  tone?: 'attention' | 'bad'
}

/** Choices limit a list by a parameter of the address, each with how many there are. */
export function Choices({ name, label, options, resets }: { name: string; label: string; options: readonly ChoiceOption[]; resets?: string }) {
  const current = param(name)
  return (
    <nav class="choices" aria-label={label}>
      {options.map((o) => (
        <a
          key={o.value}
          href={hrefWith({ [name]: o.value, ...(resets ? { [resets]: undefined } : {}) })}
          aria-current={current === o.value ? 'true' : undefined}
          class={o.tone && (o.count ?? 0) > 0 ? `choice choice-${o.tone}` : 'choice'}
        >
          {o.label}
          {o.count !== undefined && <span class="choice-count">{formatNumber(o.count)}</span>}
        </a>
      ))}
    </nav>
  )
}
