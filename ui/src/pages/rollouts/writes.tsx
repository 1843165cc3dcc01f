// What people change of a rollout, as kubectl ot rollout and kubectl ot image retry do.
import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import type { FleetDiskImage, RolloutDetail, RolloutOwners, RolloutReach } from '../../api'
import { getJSON, jsonPatch, mergePatch, RequestError, sendJSON } from '../../client'
import { shellWord } from '../../shellword'
import { Sign } from '../../components/sign'
import { Problem } from '../../components/states'
import { Reach, ReachItem, Write } from '../../components/write'
import { formatBytes, formatCount, formatDoing, formatDuration, formatNumber, plainText } from '../../format'
import { laneStateOf } from '../../lanes'
import type { Outcome } from '../../outcome'
import { useAnswer } from '../../query'
import { href, param } from '../../route'
import { approvedMeanwhile, approvalBlocked, approvalPatch, isOutdated, isSameRollout, pausePatch, retryPatch } from '../../rolloutchanges'
import { session } from '../../session'
import { downloadsOf, downloadText, maxReachSources, sourceText } from '../../reach'
import { ChangeList } from './changes'

/** A change that others were faster with is tried again, so often. */
const maxTries = 5

const pathOf = (name: string): string => `/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/${encodeURIComponent(name)}`

async function readImage(name: string): Promise<FleetDiskImage> {
  return getJSON<FleetDiskImage>(pathOf(name))
}

function me(): string {
  return session.value.state === 'signedIn' ? session.value.me.user : ''
}

/** Changes what is stored, not what was read once: another person's change that comes in between is seen, and decided about again. */
async function change(shown: FleetDiskImage, name: string, patchOf: (img: FleetDiskImage) => { body: unknown; type: string }): Promise<FleetDiskImage> {
  for (let tries = 1; ; tries++) {
    const img = await readImage(name)
    if (!isSameRollout(shown, img)) throw new RequestError(409, `FleetDiskImage ${name} has changed since it was shown, and is at version ${img.spec.version} now: close this, and look at it again.`)
    const { body, type } = patchOf(img)
    try {
      return await sendJSON<FleetDiskImage>('PATCH', pathOf(name), body, type)
    } catch (err) {
      if (!(err instanceof RequestError) || !isOutdated(err.status, err.message)) throw err
      if (tries === maxTries) throw new RequestError(409, `Others keep changing FleetDiskImage ${name}: nothing was changed. Try again.`)
    }
  }
}

/** What is stored when a dialog opens: what a person sees and approves. */
function useShown(name: string, open: boolean) {
  const shown = useSignal<FleetDiskImage | RequestError | undefined>(undefined)
  useEffect(() => {
    shown.value = undefined
    if (!open) return undefined
    let isCurrent = true // an answer to a dialog that was closed comes too late
    const show = (answer: FleetDiskImage | RequestError): void => {
      if (isCurrent) shown.value = answer
    }
    readImage(name).then(show, (err: unknown) => show(err instanceof RequestError ? err : new RequestError(0, String(err))))
    return () => {
      isCurrent = false
    }
  }, [name, open])
  return shown.value
}

/** Returns what was shown. A change is of the version that the page shows, and of no other. */
function requireShown(shown: FleetDiskImage | RequestError | undefined, d: RolloutDetail): FleetDiskImage {
  if (shown === undefined) throw new RequestError(409, 'It is being read: try again in a moment.')
  if (shown instanceof RequestError) throw shown
  if (shown.spec.version !== d.version) throw new RequestError(409, `FleetDiskImage ${d.name} has changed since it was shown, and is at version ${shown.spec.version} now: close this, and look at it again.`)
  return shown
}

/** What an approval named when a dialog first said so: what a person sees and approves. */
function useShownSources(open: boolean, img: FleetDiskImage | RequestError | undefined, reach: RolloutReach | undefined): string[] | undefined {
  const sources = useSignal<string[] | undefined>(undefined)
  const isOfShown = img !== undefined && !(img instanceof RequestError) && reach?.observed && reach.generation === img.metadata?.generation
  useEffect(() => {
    if (!open) sources.value = undefined
    else if (isOfShown && !sources.value) sources.value = reach.approveSources ?? []
  }, [open, isOfShown, reach])
  return sources.value
}

/** Why nothing is written: GitOps would write its own value again, or it is not known whether it would. undefined where nobody owns the field. */
function useOwner(name: string, field: keyof RolloutOwners, open: boolean): string | undefined {
  const { value: owners, error } = useAnswer<RolloutOwners>(open ? 'rollouts/owners' : undefined, { name }, ['rollouts']).value
  const path = { approvals: 'spec.approvals', paused: 'spec.rollout.paused', retry: 'spec.retry' }[field]
  if (!owners) return error ? `It is not known who owns ${path} of FleetDiskImage ${name}: ${error.message}` : `Who owns ${path} is being read.`
  const owner = owners[field]
  return owner && `${plainText(owner, 200)} owns ${path} of FleetDiskImage ${name} and would write its own value again: change it in Git, or use the command with --force-conflicts.`
}

export function Approve({ detail: d, wave, name, primary }: { detail: RolloutDetail; wave: string; name: string; primary?: boolean }) {
  const open = param('do') === name
  const shown = useShown(d.name, open)
  const reach = useAnswer<RolloutReach>(open ? 'rollouts/reach' : undefined, { name: d.name, wave }, ['rollouts', 'members', 'transfers', 'policy']).value
  const sources = useShownSources(open, shown, reach.value)
  const owner = useOwner(d.name, 'approvals', open)
  const version = shown && !(shown instanceof RequestError) ? shown.spec.version : d.version
  const blocked = ((): string | undefined => {
    if (shown instanceof RequestError) return shown.message
    if (reach.error) return `What it reaches cannot be said: ${reach.error.message}`
    if (shown === undefined || !reach.value) return 'What it reaches is being read.'
    return approvalBlocked(shown, wave, reach.value, sources) ?? owner
  })()
  const approve = async (): Promise<Outcome> => {
    if (!shown || shown instanceof RequestError) throw new Error('nothing was shown yet')
    await change(shown, d.name, (img) => {
      const already = approvedMeanwhile(shown, img, wave)
      if (already) throw new RequestError(409, already)
      return { body: approvalPatch(img, wave, me(), Date.now(), sources), type: jsonPatch }
    })
    return { text: `approved ${d.name} ${shown.spec.version} for wave ${wave} as ${me()}`, command: `kubectl ot rollout watch ${shellWord(d.name)}` }
  }
  return (
    <Write
      name={name}
      verb="approve"
      resource="fleetdiskimages"
      label={`Approve for ${wave}…`}
      title={`Approve ${d.name} ${version} for wave ${wave}`}
      action="Approve"
      running="Approving"
      command={`kubectl ot rollout approve ${shellWord(d.name)} --wave ${shellWord(wave)} --version ${shellWord(version)}`}
      primary={primary}
      blocked={blocked}
      run={approve}
    >
      {reach.value ? <WaveReach reach={reach.value} /> : reach.error && <Problem error={reach.error} />}
    </Write>
  )
}

function WaveReach({ reach: r }: { reach: RolloutReach }) {
  const online = r.clusters - r.offline
  return (
    <Reach>
      <ReachItem term="Starts">
        <strong>{formatCount(r.clusters, 'cluster')}</strong>
        {r.offline > 0 && `, ${formatNumber(r.offline)} of them offline`}
        {r.atATime ? `, ${r.atATime} of the wave at a time` : r.clusters > 1 ? ', all at a time' : ''}
        {r.named.length > 0 && (
          <ul class="reach-names">
            {r.named.map((c) => (
              <li key={c.cluster}>{c.offline ? <Sign tone="unknown">{`${c.cluster}, ${plainText(c.offline, 40)}`}</Sign> : c.cluster}</li>
            ))}
            {r.clusters > r.named.length && <li class="muted">and {formatNumber(r.clusters - r.named.length)} more</li>}
          </ul>
        )}
      </ReachItem>
      {(r.waiting ?? 0) > 0 && (
        <ReachItem term="Waits">
          <Sign tone="attention">{formatCount(r.waiting!, 'cluster')} cannot begin: a label is missing, or an override makes no valid image</Sign>
        </ReachItem>
      )}
      {(r.sources?.length ?? 0) > 0 && (
        <ReachItem term="Sources">
          {r.extends && <p>What {plainText(r.extends.by, 100)} has approved before becomes part of your approval.</p>}
          <ul class="reach-names">
            {r.sources!.map((s) => (
              <li key={s.digest}>{sourceText(s)}</li>
            ))}
            {r.approveSources!.length > r.sources!.length && r.sources!.length === maxReachSources && <li class="muted">and others: kubectl ot rollout approve lists them</li>}
          </ul>
        </ReachItem>
      )}
      <ReachItem term="Downloads">
        <strong>{downloadText(r)}</strong>
        {downloadsOf(r).length > 1 && (
          <ul class="reach-names">
            {downloadsOf(r).map((host) => (
              <li key={host.host}>
                {formatCount(host.clusters, 'cluster')} from {plainText(host.host ?? '', 100)}: {host.atMost && 'at most '}
                {formatBytes(host.bytes)}
              </li>
            ))}
          </ul>
        )}
        {(r.unchanged ?? 0) > 0 && <p class="muted">{formatCount(r.unchanged!, 'cluster')} only get another way to the source, and download nothing.</p>}
      </ReachItem>
      <ReachItem term="Takes">
        {r.seconds !== undefined && online > 0 ? (
          <>
            about <strong>{formatDuration(r.seconds * 1000)}</strong> from the start of the wave{' '}
            {r.earliestSeconds !== undefined && r.latestSeconds !== undefined && (
              <span class="muted">
                ({formatDuration(r.earliestSeconds * 1000)} to {formatDuration(r.latestSeconds * 1000)})
              </span>
            )}
          </>
        ) : (
          <span class="muted">{r.unknownMessage ? `no estimate: ${r.unknownMessage}` : online === 0 ? 'nothing: no cluster that is online starts' : 'no estimate'}</span>
        )}
      </ReachItem>
      <ReachItem term={r.changes ? `Since ${r.changes.since}` : 'Changes'}>
        <ChangeList detail={r} />
      </ReachItem>
      {r.before?.some((lane) => (lane.clusters.total ?? 0) > 0) && (
        <ReachItem term="Before it">
          <ul class="reach-before">
            {r.before.map((lane) => (
              <li key={lane.name}>
                <Sign tone={laneStateOf(lane).tone}>
                  {lane.name}: {formatNumber(lane.clusters.succeeded ?? 0)} of {formatNumber(lane.clusters.total ?? 0)} ready
                  {(lane.clusters.failed ?? 0) + (lane.clusters.timedOut ?? 0) > 0 && `, ${formatNumber((lane.clusters.failed ?? 0) + (lane.clusters.timedOut ?? 0))} failed`}
                  {lane.doneAt && `, done for ${formatDuration(Date.now() - Date.parse(lane.doneAt))}`}
                </Sign>
              </li>
            ))}
          </ul>
        </ReachItem>
      )}
    </Reach>
  )
}

export function PauseOrResume({ detail: d }: { detail: RolloutDetail }) {
  const open = param('do') === 'pause' || param('do') === 'resume'
  const shown = useShown(d.name, open)
  const owner = useOwner(d.name, 'paused', open) ?? (shown === undefined ? 'It is being read.' : undefined)
  const because = useSignal('')
  const progressing = d.clusters.progressing ?? 0
  const toApply = d.clusters.toApply ?? 0
  const setPaused = async (paused: boolean): Promise<Outcome> => {
    await change(requireShown(shown, d), d.name, (img) => ({ body: pausePatch(img, paused, me(), because.value), type: mergePatch }))
    return paused
      ? { text: `paused: ${formatDoing(progressing, 'cluster', 'in progress will finish', 'in progress will finish')}, ${formatNumber(toApply)} ${toApply === 1 ? 'does' : 'do'} not begin`, command: `kubectl ot rollout resume ${shellWord(d.name)}` }
      : { text: `resumed: ${formatDoing(toApply, 'cluster', 'begins as its turn comes', 'begin as their turn comes')}`, command: `kubectl ot rollout watch ${shellWord(d.name)}` }
  }
  const common = { verb: 'update', resource: 'fleetdiskimages' }
  // A dialog that is open stays, also where somebody else was faster.
  const isResume = param('do') === 'resume' || (d.paused !== undefined && param('do') !== 'pause')
  if (isResume) {
    return (
      <Write
        {...common}
        blocked={d.paused ? owner : `${d.name} is not paused.`}
        name="resume"
        label="Resume…"
        title={`Resume ${d.name} ${d.version}`}
        action="Resume"
        running="Resuming"
        command={`kubectl ot rollout resume ${shellWord(d.name)}`}
        run={() => setPaused(false)}
        primary={d.reason === 'Paused'}
      >
        <p>
          {formatDoing(toApply, 'cluster', 'that has not started begins as its turn comes', 'that have not started begin as their turn comes')}, in the order of the waves.
          {d.paused?.because && ` It was paused because: ${plainText(d.paused.because, 300)}.`}
        </p>
      </Write>
    )
  }
  const reason = because.value.trim()
  return (
    <Write
      {...common}
      blocked={d.paused ? `${d.name} is paused already.` : owner}
      name="pause"
      label="Pause…"
      title={`Pause ${d.name} ${d.version}`}
      action="Pause"
      running="Pausing"
      command={`kubectl ot rollout pause ${shellWord(d.name)}${reason ? ` -m ${shellWord(reason)}` : ''}`}
      run={() => setPaused(true)}
    >
      <p>
        {progressing > 0 && `${formatCount(progressing, 'cluster')} in progress ${progressing === 1 ? 'goes' : 'go'} on to ${progressing === 1 ? 'its' : 'their'} end. `}
        {toApply > 0 ? `${formatCount(toApply, 'cluster')} ${toApply === 1 ? 'does' : 'do'} not begin until somebody resumes.` : 'No other cluster begins until somebody resumes.'}
      </p>
      <label class="field">
        Why, for others
        <input type="text" maxLength={200} value={because.value} onInput={(event) => (because.value = event.currentTarget.value)} />
      </label>
    </Write>
  )
}

export function Retry({ detail: d }: { detail: RolloutDetail }) {
  const open = param('do') === 'retry'
  const shown = useShown(d.name, open)
  const owner = useOwner(d.name, 'retry', open) ?? (shown === undefined ? 'It is being read.' : undefined)
  const failed = (d.clusters.failed ?? 0) + (d.clusters.timedOut ?? 0)
  const named = (d.failing ?? []).map((f) => f.cluster)
  const retry = async (): Promise<Outcome> => {
    const stored = await change(requireShown(shown, d), d.name, (img) => ({ body: retryPatch(img, [], Date.now()), type: mergePatch }))
    // An API server whose CustomResourceDefinitions do not know the field drops it without a word.
    if (!stored.spec.retry) throw new Error('The hub does not know spec.retry, and nothing was retried: upgrade chart ot-hub.')
    return { text: `${d.name} ${d.version} starts over in ${formatCount(failed, 'cluster')}, with all attempts`, command: `kubectl ot image wait ${shellWord(d.name)}` }
  }
  return (
    <Write
      name="retry"
      verb="update"
      resource="fleetdiskimages"
      label={`Retry ${formatNumber(failed)} failed…`}
      title={`Retry ${d.name} ${d.version} where it has failed`}
      action="Retry"
      running="Retrying"
      command={`kubectl ot image retry ${shellWord(d.name)}`}
      blocked={failed === 0 ? `${d.name} ${d.version} has failed in no cluster: there is nothing to retry.` : owner}
      run={retry}
    >
      <Reach>
        <ReachItem term="Starts over">
          <strong>{formatCount(failed, 'cluster')}</strong>, with all attempts
          <ul class="reach-names">
            {named.map((c) => (
              <li key={c}>
                <a href={href('clusters', c)}>{c}</a>
              </li>
            ))}
            {failed > named.length && <li class="muted">and {formatNumber(failed - named.length)} more</li>}
          </ul>
        </ReachItem>
        {d.retryRequested && <ReachItem term="Already">a retry that was asked for is not followed everywhere yet</ReachItem>}
      </Reach>
    </Write>
  )
}
