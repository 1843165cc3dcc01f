import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'

/** Returns a text once it has not changed for a moment: what is typed is not asked about letter by letter. */
export function useSettled(text: string, milliseconds = 300): string {
  const settled = useSignal(text)
  useEffect(() => {
    if (settled.peek() === text) return undefined
    const timer = setTimeout(() => (settled.value = text), milliseconds)
    return () => clearTimeout(timer)
  }, [text])
  return settled.value
}
