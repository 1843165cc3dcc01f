// Clusters, images and rollouts by a part of their names. / goes there from anywhere.
import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { navigate } from './route'

export function Search() {
  const field = useRef<HTMLInputElement>(null)
  const text = useSignal('')
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return
      if ((event.target as Element).closest('input, textarea, select, [contenteditable]')) return
      event.preventDefault()
      field.current?.focus()
    }
    window.addEventListener('keydown', onKey)
    return () => window.removeEventListener('keydown', onKey)
  }, [])
  return (
    <form
      class="search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault()
        if (text.value) navigate('/clusters?q=' + encodeURIComponent(text.value))
      }}
    >
      <input ref={field} type="search" aria-label="Search" placeholder="Search  /" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
    </form>
  )
}
