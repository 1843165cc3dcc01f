import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { param, setParams } from '../route'

interface Props {
  /** The parameter of the address that has what is typed. */
  name: string
  label: string
  placeholder?: string
  /** The label is in the placeholder, and read to who cannot see. */
  bare?: boolean
  /** The parameters that say which part of the list is shown: another list begins at its start. */
  starts: readonly string[]
}

const pauseMilliseconds = 300

/** A filter that is typed: it is asked for when the typing pauses. */
export function TypedFilter({ name, label, placeholder, bare, starts }: Props) {
  const asked = param(name)
  const typed = useSignal(asked)
  const sent = useRef(asked)
  useEffect(() => {
    // What comes back from this field is older than what has been typed since; a link is not.
    if (asked !== sent.current) typed.value = asked
    sent.current = asked
  }, [asked])
  useEffect(() => {
    if (typed.value === asked) return undefined
    const timer = setTimeout(() => {
      sent.current = typed.value
      setParams({ ...Object.fromEntries(starts.map((s) => [s, undefined])), [name]: typed.value })
    }, pauseMilliseconds)
    return () => clearTimeout(timer)
  }, [typed.value, asked])
  const input = <input type="search" aria-label={bare ? label : undefined} maxLength={128} spellcheck={false} placeholder={placeholder} value={typed.value} onInput={(event) => (typed.value = event.currentTarget.value)} />
  if (bare) return input
  return (
    <label>
      {label}
      {input}
    </label>
  )
}
