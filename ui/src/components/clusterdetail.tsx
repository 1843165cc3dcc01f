// One cluster: who it is, what holds of it, why it may import as much as it may, and what it has.
import type { ComponentChildren } from 'preact'
import { RunbooksURL, type MemberCondition, type MemberDetail, type MemberImages, type ReportedImage, type Transfers } from '../api'
import { describeChain, explainChain, formatPlan, imageCounts, ownLabels } from '../clusters'
import { formatBytes, formatCount, formatNumber, plainText } from '../format'
import { stateOfReported } from '../imagestates'
import { useAnswer } from '../query'
import { href, hrefWith, param } from '../route'
import { whyOf } from '../whyaddress'
import { QueuedTable, RunningTable } from './activity'
import { Command, formatMessage } from './command'
import { Hint } from './hint'
import { shellWord } from '../shellword'
import { HistoryPanel } from './history'
import { Page, Panel } from './panel'
import { QuarantinePanel } from './quarantine'
import { Sign, toneOf } from './sign'
import { Shown } from './states'
import { Table, type Column } from './table'
import { Age } from './time'

const every = 3000

export function ClusterDetail({ name }: { name: string }) {
  const answer = useAnswer<MemberDetail>('members/detail', { member: name }, ['members', 'images', 'transfers', 'policy'], every)
  const word = shellWord(name)
  return (
    <Page
      title={
        <>
          <a class="crumb" href={href('clusters')}>
            Clusters
          </a>{' '}
          <span class="muted" aria-hidden="true">
            /
          </span>{' '}
          {plainText(name, 60)}
        </>
      }
      aside={<Command text={`kubectl ot why cluster ${word}`} />}
    >
      <Shown answer={answer} lines={10}>
        {(detail) => (
          <div class="stack">
            <Verdict detail={detail} />
            <div class="columns">
              <div class="stack">
                <Failing detail={detail} />
                <Conditions detail={detail} />
                <QuarantinePanel detail={detail} />
              </div>
              <div class="stack">
                <Budget detail={detail} />
                <Identity detail={detail} />
              </div>
            </div>
            <Activity detail={detail} />
            <HistoryPanel title="Its last hours" cluster={name} />
            <Images name={name} detail={detail} />
          </div>
        )}
      </Shown>
      <div class="commands">
        <Command label="Look into it:" text={`kubectl ot doctor --cluster ${word}`} />
        <Command label="What happened:" text={`kubectl ot events cluster ${word}`} />
      </div>
    </Page>
  )
}

/** What the cluster is, in one line. */
function Verdict({ detail }: { detail: MemberDetail }) {
  const { state, reason, since, lastReport, message } = detail
  return (
    <div class="verdict">
      <p class="verdict-line">
        <Sign tone={toneOf(state)}>{state}</Sign>
        {reason && reason !== state && state !== 'Ready' && reason !== 'Ready' && <span>{plainText(reason, 60)}</span>}
        {since && state !== 'Ready' && (
          <span class="muted">
            for <Age at={since} />
          </span>
        )}
        <span class="muted">{lastReport ? <>reported <Age at={lastReport} ago /></> : 'never reported'}</span>
        {imageCounts(detail).map((c) => (
          <Sign key={c.label} tone={c.tone}>
            {formatNumber(c.n)} {c.label}
          </Sign>
        ))}
      </p>
      {state !== 'Ready' && state !== 'Failing' && message && <p class="muted">{formatMessage(message)}</p>}
      {detail.unknown && (
        <p>
          <Sign tone="unknown">What is shown of its images may be out of date: {detail.unknown}.</Sign>
        </p>
      )}
    </div>
  )
}

/** The first images that failed, and why. */
function Failing({ detail }: { detail: MemberDetail }) {
  const total = detail.failingTotal ?? 0
  const failing = detail.failing ?? []
  if (total === 0) return null
  return (
    <Panel title={<>Failed images {<span class="count">{formatNumber(total)}</span>}</>}>
      {failing.map((f) => (
        <div key={`${f.namespace}/${f.name}`} class="condition">
          <p class="condition-head">
            <Sign tone="bad">
              <a href={hrefWith({ why: whyOf(detail.member, f.namespace, f.name) })}>
                {plainText(f.namespace, 60)}/{plainText(f.name, 80)}
              </a>
            </Sign>{' '}
            {plainText(f.reason ?? '', 60)}
          </p>
          {f.message && <p>{formatMessage(f.message)}</p>}
        </div>
      ))}
      {total > failing.length && <p class="muted">{formatCount(total - failing.length, 'more is', 'more are')} in the list of images below.</p>}
    </Panel>
  )
}

function isBad(c: MemberCondition): boolean {
  return c.status !== c.wanted
}

/** The conditions that somebody has to look at, with what to do; the others in short. */
function Conditions({ detail }: { detail: MemberDetail }) {
  // Ready and Stalled repeat what another condition says.
  const bad = detail.conditions.filter((c) => isBad(c) && c.type !== 'Quarantined')
  const good = detail.conditions.filter((c) => !isBad(c))
  const causes = bad.filter((c) => !['Ready', 'Reconciling', 'Stalled'].includes(c.type))
  return (
    <Panel title="Conditions" aside={causes.length === 0 && bad.length === 0 ? <Sign tone="good">all as they should be</Sign> : formatCount(Math.max(causes.length, bad.length > 0 ? 1 : 0), 'to look at', 'to look at')}>
      {(causes.length > 0 ? causes : bad.slice(0, 1)).map((c) => (
        <div key={c.type} class="condition">
          <p class="condition-head">
            <Sign tone={c.status === 'Unknown' ? 'unknown' : 'attention'}>
              <strong>{c.type}</strong>
            </Sign>{' '}
            <span>
              {c.status}, {plainText(c.reason, 60)}
            </span>{' '}
            <span class="muted">
              for <Age at={c.since} />
            </span>
          </p>
          {c.message && <p>{formatMessage(c.message)}</p>}
          {c.whatToDo && (
            <p class="what-to-do">
              <span class="muted">What to do:</span> {formatMessage(c.whatToDo)}
            </p>
          )}
          {c.runbook && (
            <p>
              <a href={`${RunbooksURL}${c.runbook}.md`} target="_blank" rel="noreferrer">
                Runbook {c.runbook} ↗
              </a>
            </p>
          )}
        </div>
      ))}
      {good.length > 0 && (
        <details class="conditions-good">
          <summary>{formatCount(good.length, 'condition is', 'conditions are')} as wanted</summary>
          <ul class="plain-list">
            {good.map((c) => (
              <li key={c.type}>
                <Sign tone="quiet">
                  {c.type} <span class="muted">{plainText(c.reason, 60)}</span>
                </Sign>
              </li>
            ))}
          </ul>
        </details>
      )}
    </Panel>
  )
}

/** The chain that leads to how many imports may run, with the reason at each link. */
function Budget({ detail }: { detail: MemberDetail }) {
  const chain = detail.budgetChain
  return (
    <Panel title="Budget">
      <p>{describeChain(chain)}</p>
      <ol class="chain">
        {explainChain(chain, detail.plan, detail.acknowledgedPlan, detail.quarantine !== undefined ? 'quarantined' : detail.silentSince !== undefined ? 'silent' : '').map((l) => (
          <li key={l.term} class={l.limits ? 'chain-link chain-limits' : 'chain-link'}>
            <span class="chain-value">{l.value === undefined ? '–' : formatNumber(l.value)}</span>
            <span>
              <strong>{l.term}</strong>
              {l.limits && <span class="chain-mark"> limits it</span>}
              <span class="muted chain-note">{plainText(l.note)}</span>
            </span>
          </li>
        ))}
      </ol>
      {chain.transfers?.message && <p class="muted">{formatMessage(chain.transfers.message)}</p>}
    </Panel>
  )
}

function Identity({ detail }: { detail: MemberDetail }) {
  const facts: [string, ComponentChildren][] = [
    ['Cluster UID', detail.clusterUID ? <code>{plainText(detail.clusterUID, 64)}</code> : 'unknown'],
    ['Mode', detail.mode === 'pull' ? 'pull: its agent connects to the hub' : 'push: the hub connects to it'],
    ['Agent', plainText(`${detail.agentVersion ?? 'unknown'}${detail.agentNamespace ? ` in ${detail.agentNamespace}` : ''}`, 160)],
    ['Plan', detail.plan ? `${formatPlan(detail.plan)}${detail.acknowledgedPlan ? `, acknowledged ${formatPlan(detail.acknowledgedPlan)}` : ''}` : 'none'],
    ['Synced by', detail.shard ? plainText(detail.shard, 80) : 'unknown'],
    ['Member since', <Age at={detail.createdAt} ago />],
    ['Labels', <Labels labels={detail.labels} />],
  ]
  return (
    <Panel title="Identity">
      <dl class="facts">
        {facts.map(([term, value]) => (
          <div key={term}>
            <dt>{term}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </Panel>
  )
}

function Labels({ labels }: { labels?: Record<string, string> }) {
  const own = ownLabels(labels)
  if (own.length === 0) return <span class="muted">none</span>
  return (
    <span class="labels">
      {own.map(([key, value]) => (
        <a key={key} class="chip" href={`${href('clusters')}?selector=${encodeURIComponent(`${key}=${value}`)}`}>
          {plainText(key, 60)}={plainText(value, 60)}
        </a>
      ))}
    </span>
  )
}

function Activity({ detail }: { detail: MemberDetail }) {
  const isSilentHere = detail.activityUnknown !== undefined && detail.activity === undefined
  const answer = useAnswer<Transfers>(isSilentHere || detail.quarantine !== undefined ? undefined : 'transfers', { cluster: detail.member, limit: 50 }, ['transfers', 'images', 'policy'], 5000)
  if (detail.quarantine !== undefined) return null
  if (isSilentHere) {
    return (
      <Panel title="What it imports">
        <Sign tone="unknown">Unknown: {detail.activityUnknown}</Sign>
      </Panel>
    )
  }
  return (
    <Shown answer={answer}>
      {(t) => (
        <div class="side-by-side">
          <Panel title={<>Running {<span class="count">{formatNumber(t.runningTotal)}</span>}</>}>
            <RunningTable rows={t.running} ofCluster empty="It imports nothing." />
          </Panel>
          <Panel title={<>Queued {<span class="count">{formatNumber(t.queuedTotal)}</span>}</>}>
            <QueuedTable rows={t.queued} ofCluster empty="Nothing waits for a slot." />
            {(t.unlisted ?? 0) > 0 && <p class="muted">{formatCount(t.unlisted!, 'more image waits', 'more images wait')} behind these: the cluster names the first of its queue only.</p>}
          </Panel>
        </div>
      )}
    </Shown>
  )
}

const imageColumns = (cluster: string): Column<ReportedImage>[] => [
  {
    title: 'Image',
    cell: (i) => (
      <a href={hrefWith({ why: whyOf(cluster, i.namespace, i.name) })}>
        <span class="muted">{plainText(i.namespace, 60)}/</span>
        {plainText(i.name, 80)}
      </a>
    ),
  },
  {
    title: 'Phase',
    cell: (i) => {
      const { word, tone, reason, message } = stateOfReported(i)
      return (
        <Hint class="cell-state" text={message ? formatMessage(message) : undefined}>
          <Sign tone={tone}>{plainText(word, 40)}</Sign>
          {reason && <span class="muted">{plainText(reason, 60)}</span>}
        </Hint>
      )
    },
  },
  { title: 'Machines', right: true, cell: (i) => (i.references > 0 ? <Hint text={i.holders?.map((h) => plainText(h, 80)).join(', ')}>{formatNumber(i.references)}</Hint> : <span class="muted">{i.unreferencedSince ? <>none for <Age at={i.unreferencedSince} /></> : 'none'}</span>) },
  { title: 'Storage', right: true, wide: true, cell: (i) => (i.bytes === undefined ? <span class="muted">–</span> : formatBytes(i.bytes)) },
  { title: 'Attempts', right: true, wide: true, cell: (i) => (i.attempts && i.attempts > 1 ? i.attempts : <span class="muted">{i.attempts ?? '–'}</span>) },
  { title: 'Imported', right: true, wide: true, cell: (i) => (i.syncedAt ? <Age at={i.syncedAt} ago /> : <span class="muted">–</span>) },
]

/** The images of one page of the cluster's report. */
function Images({ name, detail }: { name: string; detail: MemberDetail }) {
  const page = param('page')
  const answer = useAnswer<MemberImages>('members/images', { member: name, page }, ['images'], 5000)
  return (
    <Panel title={<>Images {detail.imageCounts && <span class="count">{formatNumber(detail.imageCounts.total)}</span>}</>} aside={detail.imageCounts && `${formatBytes(detail.imageCounts.bytes)} of storage`}>
      <Shown answer={answer} lines={8}>
        {(images) => (
          <>
            {images.unknown && <Sign tone="unknown">It may have more: {images.unknown}</Sign>}
            <Table caption={`Images of ${name}`} columns={imageColumns(name)} rows={images.images} keyOf={(i) => `${i.namespace}/${i.name}`} empty="It reports no image." />
            {(page !== '' || images.next) && (
              <nav class="pager" aria-label="Pages of images">
                {page !== '' && (
                  <a class="button button-quiet" href={hrefWith({ page: undefined })}>
                    ← First
                  </a>
                )}
                {images.next && (
                  <a class="button button-quiet" href={hrefWith({ page: images.next })} rel="next">
                    After →
                  </a>
                )}
              </nav>
            )}
          </>
        )}
      </Shown>
    </Panel>
  )
}
