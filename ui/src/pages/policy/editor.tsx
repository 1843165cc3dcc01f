// The keys of the policy: what they mean, what holds, where it comes from, and what a person tries instead.
import type { ComponentChildren } from 'preact'
import type { FleetPolicy, PolicyKey } from '../../api'
import { formatMessage } from '../../components/command'
import { Panel } from '../../components/panel'
import { Sign } from '../../components/sign'
import { formatCount, formatNumber, now, plainText } from '../../format'
import { effective, formatDraft, parseDraft, withValue, type Changes, type Data } from '../../policydraft'
import { windowsText } from '../../policytext'
import { param, setParams } from '../../route'

/** Returns what a change is based on: the ConfigMap as it is written, else what is in force. */
export function baseOf(p: FleetPolicy): Data {
  return (p.configMap.resourceVersion ? p.configMap.data : p.inForce) ?? {}
}

/** Returns what a person tries, from the address. */
export function draftOf(p: FleetPolicy): Changes {
  return effective(baseOf(p), parseDraft(param('draft')))
}

function setDraft(p: FleetPolicy, changes: Changes): void {
  const draft = formatDraft(changes)
  // A change is written only onto the version that it was begun on.
  setParams({ draft, base: draft && (param('base') || p.configMap.resourceVersion) })
}

export function State({ policy: p }: { policy: FleetPolicy }) {
  const { namespace, name, resourceVersion, owner, unreadable } = p.configMap
  return (
    <div class="policy-state">
      {p.accepted ? (
        <Sign tone="good">in force as it is written</Sign>
      ) : (
        <div class="banner banner-bad" role="status">
          <strong>Not in force as it is written.</strong> {formatMessage(p.message ?? '', 1024)}
        </div>
      )}
      <p class="muted">
        ConfigMap {namespace}/{name}
        {resourceVersion ? '' : ', which does not exist'}
        {owner && `, applied by ${owner.controller}${owner.source ? ` (${owner.source})` : ` (field manager ${owner.manager})`}`}
        {unreadable && `: ${unreadable}`}
      </p>
      {p.windows && <p>{windowsText(p.windows, now.value)}</p>}
    </div>
  )
}

/** The keys that stand together, in the order of the page. */
function sectionsOf(keys: readonly PolicyKey[]): { title: string; keys: PolicyKey[] }[] {
  const isBudget = (k: PolicyKey): boolean => k.name === 'safeConcurrency' || k.name.startsWith('fleet')
  return [
    { title: 'Each cluster', keys: keys.filter((k) => !isBudget(k) && k.kind !== 'overrides') },
    { title: 'The whole fleet', keys: keys.filter(isBudget) },
    { title: 'Overrides', keys: keys.filter((k) => k.kind === 'overrides') },
  ]
}

export function Editor({ policy: p }: { policy: FleetPolicy }) {
  const base = baseOf(p)
  const draft = draftOf(p)
  const known = new Set(p.keys.map((k) => k.name))
  const others = Object.keys({ ...base, ...draft }).filter((k) => !known.has(k))
  return (
    <form class="stack" onSubmit={(event) => event.preventDefault()} aria-label="The keys of the policy">
      {sectionsOf(p.keys).map((section) => (
        <Panel key={section.title} title={section.title}>
          <div class="keys">
            {section.keys.map((k) => (
              <Row key={k.name} policy={p} is={k} base={base} draft={draft} />
            ))}
          </div>
        </Panel>
      ))}
      {others.length > 0 && (
        <Panel title="Keys that this hub does not use">
          <div class="keys">
            {others.map((name) => (
              <Row key={name} policy={p} is={{ name, kind: 'hosts', meaning: 'It has no effect on the fleet: it is of another version, of this cluster alone, or mistyped.' }} base={base} draft={draft} />
            ))}
          </div>
        </Panel>
      )}
    </form>
  )
}

function Row({ policy: p, is, base, draft }: { policy: FleetPolicy; is: PolicyKey; base: Data; draft: Changes }) {
  const id = `key-${is.name}`
  const before = Object.hasOwn(base, is.name) ? base[is.name] : undefined
  const isChanged = Object.hasOwn(draft, is.name)
  const shown = isChanged ? (draft[is.name] ?? '') : (before ?? '')
  const set = (value: string): void => setDraft(p, withValue(base, draft, is.name, value))
  return (
    <div class={isChanged ? 'key key-changed' : 'key'}>
      <div class="key-words">
        <label for={id}>{is.name}</label>
        <p id={`${id}-help`} class="muted">
          <Meaning text={is.meaning} />
          {is.least !== undefined && ` ${is.least} to ${is.most}.`}
        </p>
      </div>
      <div class="key-value">
        <Field id={id} is={is} value={shown} onValue={set} />
        <p class="key-from">
          {isChanged ? (
            <>
              <Sign tone="attention">was {before === undefined ? `not set${is.default ? `, ${is.default}` : ''}` : shortValue(before)}</Sign>{' '}
              <button type="button" class="button button-quiet" onClick={() => set(before ?? '')} aria-label={`Take the change of ${is.name} back`}>
                Take back
              </button>
            </>
          ) : (
            <span class="muted">{before === undefined ? (is.default ? `default ${is.default}` : 'not set') : is.default === before ? 'set here, as the default is' : is.default ? `set here; default ${is.default}` : 'set here'}</span>
          )}
        </p>
        <Deciding policy={p} name={is.name} />
      </div>
    </div>
  )
}

/** Deciding says for how many clusters overrides decide a key. */
function Deciding({ policy: p, name }: { policy: FleetPolicy; name: string }) {
  const uses = p.overrides.flatMap((o) => o.keys.filter((k) => k.name === name && k.members > 0).map((k) => ({ source: o.source, ...k })))
  if (uses.length === 0) return null
  return (
    <ul class="key-overrides">
      {uses.map((u) => (
        <li key={u.source + u.value}>
          <strong>{shortValue(u.value)}</strong> in {formatCount(u.members, 'cluster')} <span class="muted">{u.source}</span>
        </li>
      ))}
    </ul>
  )
}

function shortValue(text: string): string {
  const line = text.trim().split(/\s*\n\s*/).join(' ')
  return plainText(line === '' ? 'empty' : line, 60)
}

function Field({ id, is, value, onValue }: { id: string; is: PolicyKey; value: string; onValue: (value: string) => void }) {
  const common = { id, 'aria-describedby': `${id}-help`, spellcheck: false }
  switch (is.kind) {
    case 'boolean':
      return (
        <select {...common} value={value} onChange={(event) => onValue(event.currentTarget.value)}>
          <option value="">not set</option>
          {!['', 'true', 'false'].includes(value) && <option value={value}>{value}</option>}
          <option value="true">true</option>
          <option value="false">false</option>
        </select>
      )
    case 'groups':
    case 'overrides':
    case 'windows':
      return <textarea {...common} rows={Math.min(24, Math.max(3, value.split('\n').length + 1))} value={value} placeholder={placeholders[is.kind]} onInput={(event) => onValue(event.currentTarget.value)} />
    default:
      return (
        <input
          {...common}
          type="text"
          inputMode={is.kind === 'number' ? 'numeric' : 'text'}
          autocomplete="off"
          class={is.kind === 'hosts' ? 'field-long' : 'field-short'}
          value={value}
          placeholder={is.default || 'not set'}
          onInput={(event) => onValue(event.currentTarget.value)}
        />
      )
  }
}

const placeholders = {
  groups: '- {name: eu-bucket, hosts: ["*.s3.eu-central-1.example.com"], concurrency: 8}',
  windows: '- {cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 4}',
  overrides: '- selector: {matchLabels: {edge: "true"}}\n  concurrency: "1"',
}

/** Meaning shows the marks of code in a text. */
function Meaning({ text }: { text: string }) {
  return <>{text.split('`').map((part, i): ComponentChildren => (i % 2 === 1 ? <code>{part}</code> : part))}</>
}

export function OverridesPanel({ policy: p }: { policy: FleetPolicy }) {
  if (p.overrides.length === 0) return null
  return (
    <Panel title="Overrides in force" aside={<span>{formatCount(p.members, 'cluster')}</span>}>
      <ol class="overrides">
        {p.overrides.map((o, i) => (
          <li key={i}>
            <p>
              <strong>{plainText(o.source.replace(/^override /, ''), 200)}</strong>{' '}
              {o.members === 0 ? <Sign tone="attention">no cluster matches</Sign> : <span class="muted">{formatCount(o.members, 'cluster')}</span>}
            </p>
            <ul>
              {o.keys.map((k) => (
                <li key={k.name}>
                  {k.name} <strong>{shortValue(k.value)}</strong>
                  {k.members < o.members && <span class="muted">, decides in {formatNumber(k.members)}: another override wins elsewhere</span>}
                </li>
              ))}
            </ul>
          </li>
        ))}
      </ol>
    </Panel>
  )
}
