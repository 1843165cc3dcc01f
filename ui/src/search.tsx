// Clusters, rollouts, versions and sources by words of their names. / goes there from anywhere.
import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import type { SearchAnswer } from './api'
import { formatMessage } from './components/command'
import { toneOf, Sign } from './components/sign'
import { plainText } from './format'
import { useAnswer } from './query'
import { navigate } from './route'
import { hrefOfFound, kindWords, nameOfFound, nextOption } from './found'

const quietMilliseconds = 150

export function Search() {
  const field = useRef<HTMLInputElement>(null)
  const text = useSignal('')
  const asked = useSignal('')
  const open = useSignal(false)
  const active = useSignal(-1)
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return
      if ((event.target as Element).closest('input:not([type="range"]), textarea, select, [contenteditable], dialog')) return
      event.preventDefault()
      field.current?.focus()
      field.current?.select()
    }
    window.addEventListener('keydown', onKey)
    return () => window.removeEventListener('keydown', onKey)
  }, [])
  useEffect(() => {
    const timer = setTimeout(() => (asked.value = text.value.trim()), quietMilliseconds)
    return () => clearTimeout(timer)
  }, [text.value])

  const answer = useAnswer<SearchAnswer>(asked.value === '' ? undefined : 'search', { q: asked.value }, [])
  const { value, error } = answer.value
  const found = asked.value === '' ? [] : (value?.found ?? [])
  const shown = open.value && asked.value !== '' && (value !== undefined || error !== undefined)
  const at = Math.min(active.value, found.length - 1)
  const close = (): void => {
    open.value = false
    active.value = -1
  }
  const choose = (index: number): void => {
    const one = found[index]
    if (!one) return
    close()
    text.value = asked.value = ''
    field.current?.blur()
    navigate(hrefOfFound(one))
  }
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === 'Escape') {
      event.preventDefault()
      if (shown) close()
      else text.value = ''
      return
    }
    if (event.key === 'Enter') {
      event.preventDefault()
      // What is listed may still be of the text before.
      if (text.value.trim() === asked.value) choose(Math.max(0, at))
      return
    }
    const next = nextOption(at, event.key, found.length)
    if (next === undefined) return
    event.preventDefault()
    open.value = true
    active.value = next
  }
  return (
    <div
      class="search"
      role="search"
      onFocusOut={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget as Node | null)) close()
      }}
    >
      <input
        ref={field}
        type="search"
        role="combobox"
        list={undefined}
        aria-label="Search clusters, rollouts, versions and sources"
        aria-expanded={shown}
        aria-controls="search-found"
        aria-autocomplete="list"
        aria-activedescendant={shown && at >= 0 ? `search-found-${at}` : undefined}
        placeholder="Search  /"
        autocomplete="off"
        spellcheck={false}
        maxLength={120}
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value
          open.value = true
          active.value = -1
        }}
        onFocus={() => (open.value = true)}
        onKeyDown={onKeyDown}
      />
      <div class={shown ? 'search-panel' : 'visually-hidden'}>
        <ul id="search-found" role="listbox" aria-label="Found">
          {shown &&
            found.map((one, i) => (
              <li key={`${one.kind} ${one.name} ${one.version}`} id={`search-found-${i}`} role="option" aria-selected={i === at} onPointerDown={(event) => event.preventDefault()} onClick={() => choose(i)}>
                <span class="search-name">{plainText(nameOfFound(one), 200)}</span>
                {one.state && <Sign tone={toneOf(one.state)}>{one.state}</Sign>}
                <span class="muted search-kind">{kindWords[one.kind]}</span>
              </li>
            ))}
        </ul>
        <p class="muted" role="status">
          {shown && (error ? formatMessage(error.message) : found.length === 0 ? 'Nothing has that in its name.' : value?.more ? 'More match: give more of the name.' : '')}
        </p>
      </div>
    </div>
  )
}
