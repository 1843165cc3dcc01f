// What the policy that a person tries would change, and how it is brought into force.
import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import type { BlastRadius, BlastRow, FleetPolicy } from '../../api'
import { mergePatch, sendJSON } from '../../client'
import { Command, CopyButton, formatMessage } from '../../components/command'
import { Hint } from '../../components/hint'
import { Figure, Figures, Panel } from '../../components/panel'
import { Sign } from '../../components/sign'
import { Problem } from '../../components/states'
import { Table } from '../../components/table'
import { useSettled } from '../../components/settled'
import { Reach, ReachItem, Write } from '../../components/write'
import { formatCount, formatDoing, formatDuration, formatNumber, now, plainText } from '../../format'
import { apply, type Changes } from '../../policydraft'
import { concurrency, configMapYAML, diffCommand, diffMarkdown, longerWait, mergePatchOf, patchCommand, pullRequestText, signed } from '../../policytext'
import { memberRefreshMilliseconds, useAnswer } from '../../query'
import { hrefWith, href, param, setParams } from '../../route'
import { baseOf, draftOf } from './editor'

const shownRows = 100

export function BlastPanel({ policy: p }: { policy: FleetPolicy }) {
  const draft = draftOf(p)
  const text = JSON.stringify(apply(baseOf(p), draft))
  const settled = useSettled(text)
  const isTrying = Object.keys(draft).length > 0
  // Without a change, what is written is compared with what is in force.
  const isPending = !p.accepted && p.configMap.resourceVersion !== undefined
  const answer = useAnswer<BlastRadius>(isTrying || isPending ? 'blastradius' : undefined, { policy: settled, limit: shownRows }, ['policy', 'members'], memberRefreshMilliseconds)
  const last = useSignal<BlastRadius | undefined>(undefined)
  useEffect(() => {
    if (answer.value.value) last.value = answer.value.value
  }, [answer.value.value])
  const current = settled === text ? answer.value.value : undefined
  // The dialog says what came of a change when there is no change left.
  const isOpen = param('do') === 'policy'
  if (!isTrying && !isPending && !isOpen) {
    return (
      <Panel title="What a change would change">
        <p class="muted">Change a value: here stands which clusters change, by how much, and whose wait grows, before anything is written.</p>
      </Panel>
    )
  }
  const shown = current ?? last.value
  return (
    <Panel
      title={isPending && !isTrying ? 'What is written, and not in force' : 'What this would change'}
      aside={
        isTrying && (
          <button type="button" class="button button-quiet" onClick={() => setParams({ draft: undefined, base: undefined })}>
            Take all back
          </button>
        )
      }
    >
      {answer.value.error && <Problem error={answer.value.error} />}
      {shown && (isTrying || isPending) && (
        <div class={current ? 'stack' : 'stack stale'} aria-busy={!current}>
          <Radius radius={shown} />
        </div>
      )}
      {(isTrying || isOpen) && <Bringing policy={p} draft={draft} radius={current} failed={answer.value.error !== undefined} />}
      {/* Long, so after what is to be done with the change. */}
      {shown && (isTrying || isPending) && shown.rows.length > 0 && <Rows radius={shown} />}
    </Panel>
  )
}

function Radius({ radius: r }: { radius: BlastRadius }) {
  if (r.refused && r.refused.length > 0) {
    return (
      <div class="refused" role="alert">
        <Sign tone="bad">It would be refused; the policy in force stays.</Sign>
        <ul>
          {r.refused.map((why) => (
            <li key={why}>
              <code>{plainText(why, 600)}</code>
            </li>
          ))}
        </ul>
      </div>
    )
  }
  const longer = r.rows.filter((row) => (longerWait(row) ?? 0) > 0)
  return (
    <>
      <Figures>
        <Figure label="Clusters that change" note={`of ${formatNumber(r.members)}`}>
          {formatNumber(r.changed)}
        </Figure>
        <Figure label="Imports at a time" note={`${signed(r.concurrencyThen - r.concurrencyNow)}, ${formatNumber(r.gain)} more, ${formatNumber(r.lose)} less`}>
          {formatNumber(r.concurrencyNow)} → {formatNumber(r.concurrencyThen)}
        </Figure>
        {longer.length > 0 && (
          <Figure label="Wait grows in" note={formatCount(longer.length, 'cluster').replace(/^\S+ /, '')}>
            {formatNumber(longer.length)}
          </Figure>
        )}
      </Figures>
      {r.budgetChange && (
        <p>
          The budget of the fleet: <strong>{plainText(r.budgetChange, 400)}</strong>
        </p>
      )}
      {r.windows && <p>{plainText(r.windows, 400)}</p>}
      {r.changed === 0 && !r.budgetChange && <p class="muted">No cluster would get another policy.</p>}
      {r.rows.some((row) => row.running !== undefined && row.running > row.then) && (
        <p class="muted">Nothing that runs is stopped: clusters beyond their new concurrency start none until enough have ended.</p>
      )}
      <ul class="plain-list">
        {r.unmatched?.map((o) => (
          <li key={o}>
            <Sign tone="attention">no cluster matches {plainText(o, 200)}</Sign>
          </li>
        ))}
        {r.heldMembers?.map((m) => (
          <li key={m}>
            <Sign tone="attention">{m} runs less than planned, by its own policy ConfigMap</Sign>
          </li>
        ))}
        {r.unknownKeys?.map((k) => (
          <li key={k}>
            <Sign tone="attention">key {plainText(k, 100)} is unknown to this hub, and has no effect</Sign>
          </li>
        ))}
        {r.ineffective?.map((note) => (
          <li key={note}>
            <Sign tone="attention">{plainText(note, 300)}</Sign>
          </li>
        ))}
      </ul>
    </>
  )
}

function Rows({ radius: r }: { radius: BlastRadius }) {
  return (
    <>
      <Table<BlastRow>
        caption="Clusters that change"
        rows={r.rows}
        keyOf={(row) => row.member}
        columns={[
          { title: 'Cluster', cell: (row) => <a class="nowrap" href={href('clusters', row.member)}>{row.member}</a> },
          { title: 'Now', right: true, cell: (row) => <span class="nowrap">{concurrency(row.now, row.plannedNow)}</span> },
          { title: 'Then', right: true, cell: (row) => <Then row={row} /> },
          { title: 'Runs', right: true, wide: true, cell: (row) => (row.running === undefined ? <Sign tone="unknown">unknown</Sign> : row.running > row.then ? `${row.running}, over` : row.running) },
          { title: 'Queued', right: true, wide: true, cell: (row) => row.queued ?? '–' },
          { title: 'Oldest waits', right: true, cell: (row) => <Wait row={row} /> },
          {
            title: 'Other keys, from',
            wide: true,
            cell: (row) => (
              <>
                {row.otherChanges && <>{plainText(row.otherChanges, 200)} </>}
                <span class="muted">{plainText(row.from, 120)}</span>
                {row.unknown && (
                  <>
                    {' '}
                    <Sign tone="unknown">{row.unknown}</Sign>
                  </>
                )}
              </>
            ),
          },
        ]}
      />
      {(r.omitted ?? 0) > 0 && <p class="muted">and {formatDoing(r.omitted!, 'more cluster', ', which changes', ', which change')} less</p>}
    </>
  )
}

function Then({ row }: { row: BlastRow }) {
  const text = concurrency(row.then, row.plannedThen)
  if (row.now === undefined || row.now === row.then) return <span class="nowrap">{text}</span>
  return row.now < row.then ? (
    <span class="more nowrap">
      ▲ {text}
      <span class="visually-hidden"> more</span>
    </span>
  ) : (
    <span class="less nowrap">
      ▼ {text}
      <span class="visually-hidden"> less</span>
    </span>
  )
}

function Wait({ row }: { row: BlastRow }) {
  if (!row.waitNow && !row.waitThen) return <>–</>
  const until = (at: string | undefined): string => (at ? `~${formatDuration(Math.max(0, Date.parse(at) - now.value))}` : '?')
  const more = longerWait(row) ?? 0
  return (
    <Hint class={more > 0 ? 'less' : undefined} text={formatMessage(row.waitThen?.message || row.waitNow?.message || '') || undefined}>
      {until(row.waitNow?.at)} → {until(row.waitThen?.at)}
      {more > 0 && <span class="visually-hidden"> longer</span>}
    </Hint>
  )
}

/** Bringing is how the change comes into force: by this page, or as text where Git has it. */
function Bringing({ policy: p, draft, radius, failed }: { policy: FleetPolicy; draft: Changes; radius?: BlastRadius; failed: boolean }) {
  const { owner, unreadable } = p.configMap
  return (
    <>
      {owner ? (
        <div class="banner banner-attention" role="status">
          <strong>
            {owner.controller} {owner.source ? `(${owner.source})` : `(field manager ${owner.manager})`} owns this ConfigMap
          </strong>{' '}
          and would write its own values again. Change it in Git: the text is below.
        </div>
      ) : unreadable ? (
        <div class="banner banner-attention" role="status">
          Who owns the ConfigMap is not known ({plainText(unreadable, 300)}), so this page does not write it. The text is below.
        </div>
      ) : (
        <Save policy={p} draft={draft} radius={radius} failed={failed} />
      )}
      <Texts policy={p} draft={draft} radius={radius} />
    </>
  )
}

function Save({ policy: p, draft, radius, failed }: { policy: FleetPolicy; draft: Changes; radius?: BlastRadius; failed: boolean }) {
  const { namespace, name, resourceVersion } = p.configMap
  const path = `/k8s/api/v1/namespaces/${encodeURIComponent(namespace)}/configmaps`
  const began = param('base')
  const isMoved = began !== '' && resourceVersion !== undefined && began !== resourceVersion
  const keys = Object.keys(draft)
  return (
    <>
      {isMoved && (
        <div class="banner banner-attention" role="alert">
          <p>Somebody changed the ConfigMap since you began. The values beside yours are the new ones: compare them, then go on.</p>
          <a class="button" href={hrefWith({ base: resourceVersion })}>
            Go on with the new version
          </a>
        </div>
      )}
      <Write
        name="policy"
        verb={resourceVersion ? 'update' : 'create'}
        resource="configmaps"
        label="Write it…"
        title="Change the policy"
        action="Write it"
        running="Writing it"
        primary
        command={patchCommand(namespace, name, draft)}
        blocked={
          keys.length === 0
            ? 'Nothing is changed.'
            : isMoved
            ? 'Somebody changed the ConfigMap since you began.'
            : radius === undefined
              ? failed
                ? 'It is not known what this would change.'
                : 'What this would change is being computed.'
              : radius.refused && radius.refused.length > 0
                ? `It would be refused: ${radius.refused[0]}`
                : undefined
        }
        run={async () => {
          if (resourceVersion) await sendJSON('PATCH', `${path}/${encodeURIComponent(name)}`, mergePatchOf(draft, began || resourceVersion), mergePatch)
          else await sendJSON('POST', path, { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace }, data: apply(baseOf(p), draft) })
          setParams({ draft: undefined, base: undefined })
          return { text: `ConfigMap ${namespace}/${name} is written.`, notes: ['The hub takes it into force within seconds; the page shows when it has.'], command: diffCommand(namespace, name, {}) }
        }}
      >
        <Reach>
          <ReachItem term="Keys">{keys.map((k) => plainText(k, 100)).join(', ')}</ReachItem>
          {radius && !radius.refused?.length && (
            <>
              <ReachItem term="Changes">
                <strong>
                  {formatNumber(radius.changed)} of {formatCount(radius.members, 'cluster')}
                </strong>
                ; imports at a time {formatNumber(radius.concurrencyNow)} → {formatNumber(radius.concurrencyThen)} ({signed(radius.concurrencyThen - radius.concurrencyNow)})
              </ReachItem>
              {radius.budgetChange && <ReachItem term="Fleet">{plainText(radius.budgetChange, 400)}</ReachItem>}
              {radius.windows && <ReachItem term="Windows">{plainText(radius.windows, 400)}</ReachItem>}
            </>
          )}
          <ReachItem term="Written">ConfigMap {namespace}/{name}, only if nobody changed it meanwhile</ReachItem>
        </Reach>
      </Write>
    </>
  )
}

const forms = [
  { form: 'pr', label: 'Text of a pull request' },
  { form: 'yaml', label: 'YAML' },
  { form: 'patch', label: 'Patch' },
]

function Texts({ policy: p, draft, radius }: { policy: FleetPolicy; draft: Changes; radius?: BlastRadius }) {
  const form = param('as')
  const { namespace, name } = p.configMap
  const text =
    form === 'yaml'
      ? configMapYAML(namespace, name, apply(baseOf(p), draft))
      : form === 'patch'
        ? patchCommand(namespace, name, draft)
        : form === 'pr' && radius
          ? radius.refused?.length
            ? diffMarkdown(radius, now.peek())
            : pullRequestText(baseOf(p), draft, radius, now.peek())
          : ''
  return (
    <div class="texts">
      <nav class="choices" aria-label="The change as text">
        <span class="muted">Copy as</span>
        {forms.map((f) => (
          <a key={f.form} href={hrefWith({ as: f.form === form ? undefined : f.form })} aria-current={f.form === form ? 'true' : undefined}>
            {f.label}
          </a>
        ))}
      </nav>
      {text !== '' &&
        (form === 'patch' ? (
          <Command text={text} />
        ) : (
          <div class="text-copy">
            <pre tabIndex={0} aria-label={forms.find((f) => f.form === form)?.label}>
              {text}
            </pre>
            <CopyButton text={text} />
          </div>
        ))}
    </div>
  )
}
