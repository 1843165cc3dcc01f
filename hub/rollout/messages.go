package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// phaseVerdict is the summary of a status. Messages hold nothing that changes with time
// alone: each change costs a write.
type phaseVerdict struct {
	phase   v1alpha1.RolloutPhase
	reason  string
	message string
}

func waitingVerdict(reason, format string, args ...any) phaseVerdict {
	return phaseVerdict{v1alpha1.RolloutWaiting, reason, fmt.Sprintf(format, args...)}
}

// decidePhase derives the phase from what blocks further clusters.
func (e *evaluation) decidePhase(b blocker) phaseVerdict {
	isStalled := e.updateBlockedSince(b)
	if isStalled && !isObstacle(b.reason) {
		b.reason = v1alpha1.ReasonClustersBlocked
	}
	text := e.blockerMessage(b)
	windows, only := e.windowsMessage(), e.onlyWindowsRemain()
	switch {
	case windows == "":
	case b.reason == v1alpha1.ReasonAwaitingClusters && only:
		b.reason, text = v1alpha1.ReasonRolloutWaitingForWindow, windows
	case b.reason == v1alpha1.ReasonMaxConcurrency && only:
		b.reason, text = v1alpha1.ReasonRolloutWaitingForWindow, windows+". "+text
	default:
		text += ". " + windows
	}
	v := phaseVerdict{v1alpha1.RolloutWaiting, b.reason, text + e.blockedMessage() + e.keepingMessage()}
	switch {
	case b.reason == v1alpha1.ReasonRolledOut:
		v.phase = v1alpha1.RolloutSucceeded
	case e.counts.Progressing > e.counts.blocked+e.counts.windowed, e.status.BlockedSince != nil && !isStalled:
		v.phase = v1alpha1.RolloutProgressing
	case b.reason == v1alpha1.ReasonMaxFailures:
		v.phase = v1alpha1.RolloutFailed
	}
	if empty := e.emptyWaves(); e.counts.Total > 0 && len(empty) > 0 {
		v.message += fmt.Sprintf(". No placed cluster is in wave %s: check its clusterSelector", strings.Join(empty, ", "))
	}
	return v
}

func (e *evaluation) blockerMessage(b blocker) string {
	total := &e.counts
	wave, inWave := "", &stateCounts{}
	if e.currentWave < len(e.waves) {
		wave, inWave = e.waves[e.currentWave].name, &e.waves[e.currentWave].counts
	}
	rollout := &e.Image.Spec.Rollout
	switch b.reason {
	case v1alpha1.ReasonNoClusters:
		return fmt.Sprintf("spec.placement selects none of the fleet's %s: correct it, or label the MemberClusters; until then plans keep what they have", pluralClusters(int32(len(e.Clusters))))
	case v1alpha1.ReasonMaxFailures:
		return fmt.Sprintf("%s failed (%s), and maxFailures allows %d: no further cluster starts. See status.failing; "+
			"fix the cause in those clusters, set another version, or raise spec.rollout.maxFailures",
			clustersHave(int32(total.failures())), e.clusterNames(func(c *placedCluster) bool { return isFailed(c.state) }), e.allowedFailures())
	case v1alpha1.ReasonRolloutPaused:
		return fmt.Sprintf("spec.rollout.paused is set: %s not started", ofClusters(total.ToApply, total.Total, "has", "have"))
	case v1alpha1.ReasonMinSuccessTime:
		return fmt.Sprintf("wave %s starts at %s, once the waves before it have been done for minSuccessTime", wave, b.until.UTC().Format(time.RFC3339))
	case v1alpha1.ReasonAwaitingApproval:
		return e.approvalMessage(&e.waves[e.currentWave])
	case v1alpha1.ReasonMaxConcurrency:
		return fmt.Sprintf("%s in progress, and maxConcurrency allows %d; %d %s to start", ofClusters(inWave.Progressing, inWave.Total, "in wave "+wave+" is", "in wave "+wave+" are"), b.limit, inWave.ToApply, verbFor(inWave.ToApply, "waits", "wait"))
	case v1alpha1.ReasonPlanFull:
		return fmt.Sprintf("%s in wave %s cannot start: a plan holds at most %d images, and theirs are full. Remove these clusters from the placement of other FleetDiskImages, or add them to spec.placement.excludedClusters", pluralClusters(inWave.ToApply), wave, v1alpha1.MaxPlannedImages)
	case v1alpha1.ReasonFieldsUnknown, v1alpha1.ReasonLabelMissing, v1alpha1.ReasonSourceInvalid:
		return e.obstacleVerdictMessage(b.reason, wave)
	case v1alpha1.ReasonOfflineClusters:
		if rollout.OfflineClusters != v1alpha1.OfflineWait || wave == "" {
			return fmt.Sprintf("all placed clusters are offline (%s); they catch up when they are back", e.clusterNames(isDeferred))
		}
		names, n := e.listClusterNames(func(c *placedCluster) bool {
			return int(c.wave) == e.currentWave && isDeferred(c) && !c.isQuarantined()
		})
		return fmt.Sprintf("wave %s waits for %d offline (%s), because spec.rollout.offlineClusters is Wait", wave, n, names)
	case v1alpha1.ReasonAwaitingClusters:
		return fmt.Sprintf("%s in progress; none waits to start", ofClusters(inWave.Progressing, inWave.Total, "in wave "+wave+" is", "in wave "+wave+" are"))
	case v1alpha1.ReasonClustersBlocked:
		return "no cluster proceeds until a person acts"
	default:
		return e.rolledOutMessage()
	}
}

// rolledOutMessage also counts the clusters without the image that do not block success.
func (e *evaluation) rolledOutMessage() string {
	c := &e.counts
	text := fmt.Sprintf("%s %s/%s", ofClusters(c.Succeeded, c.Total, "has", "have"), e.version.Namespace, e.version.Image)
	if n := c.failures(); n > 0 {
		text += fmt.Sprintf("; %d failed, and maxFailures allows %d: see status.failing", n, e.allowedFailures())
	}
	if c.Deferred > 0 {
		text += fmt.Sprintf("; %d offline: %s", c.Deferred, verbFor(c.Deferred, "it catches up when it is back", "they catch up when they are back"))
	}
	return text
}

// keepingMessage names the clusters that a changed template does not reach.
func (e *evaluation) keepingMessage() string {
	if e.counts.keeping == 0 {
		return ""
	}
	return fmt.Sprintf(". The plans of %s keep the former fields of spec.template, because agents do not know the new ones: upgrade chart ot-agent there (%s)",
		pluralClusters(e.counts.keeping), e.clusterNames(func(c *placedCluster) bool { return c.keepsItem }))
}

func invalidSelectorVerdict(err error) phaseVerdict {
	return waitingVerdict(v1alpha1.ReasonSelectorInvalid, "%s. Correct it: until then no cluster starts and plans stay as they are", oneLine(err))
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func (e *evaluation) conflictVerdict() phaseVerdict {
	if taken := e.takenVersions(); len(taken) > 0 && !e.version.Taken {
		return waitingVerdict(v1alpha1.ReasonNameConflict, "FleetDiskImage %s is older and has, or had, VMDiskImages of the same name as former versions of this one (%s): no cluster starts, and clusters keep the images they have. "+
			"Set spec.version back to each of these with another spec.imageName or spec.targetNamespace, or delete the other: another name of the current version ends no conflict", e.Conflict, v1alpha1.JoinFirst(taken, maxListedNames, len(taken)))
	}
	return waitingVerdict(v1alpha1.ReasonNameConflict, "FleetDiskImage %s is older and has, or had, VMDiskImages of the same name in namespace %s: no cluster starts, and clusters keep the images they have. "+
		"Give this one another spec.imageName or spec.targetNamespace, or delete the other", e.Conflict, e.version.Namespace)
}

// takenVersions returns the first versions whose names the older FleetDiskImage has or had.
func (e *evaluation) takenVersions() (versions []string) {
	for i := range e.status.Versions {
		if v := &e.status.Versions[i]; v.Taken && len(versions) < maxListedNames {
			versions = append(versions, v.Version)
		}
	}
	return versions
}

func (e *evaluation) deletingVerdict() phaseVerdict {
	offline := 0
	listed := make([]string, 0, maxListedNames)
	for _, holder := range e.Holders {
		i, found := slices.BinarySearchFunc(e.Clusters, holder, func(c Cluster, name string) int { return strings.Compare(c.Name, name) })
		isOffline := found && e.Clusters[i].OfflineReason != ""
		if isOffline {
			offline++
		}
		if len(listed) < maxListedNames {
			if isOffline {
				holder += " (offline: " + e.Clusters[i].OfflineReason + ")"
			}
			listed = append(listed, holder)
		}
	}
	text := v1alpha1.JoinFirst(listed, maxListedNames, len(e.Holders))
	if text == "" {
		return waitingVerdict(v1alpha1.ReasonDeletingImages, "the FleetDiskImage is being deleted")
	}
	return waitingVerdict(v1alpha1.ReasonDeletingImages, "the FleetDiskImage is being deleted with its images (deletionPolicy: Delete), and %s may still have some: %s; %d offline. "+
		"An image is deleted once no VirtualMachine references it. To keep the images, set spec.deletionPolicy: Retain",
		pluralClusters(int32(len(e.Holders))), text, offline)
}

// emptyWaves returns the waves without clusters.
func (e *evaluation) emptyWaves() (names []string) {
	for i := range e.waves {
		if e.waves[i].counts.Total == 0 {
			names = append(names, e.waves[i].name)
		}
	}
	return names
}

func (e *evaluation) clusterNames(isListed func(*placedCluster) bool) string {
	names, _ := e.listClusterNames(isListed)
	return names
}

// listClusterNames lists the first placed clusters that are listed, and counts all of them.
func (e *evaluation) listClusterNames(isListed func(*placedCluster) bool) (names string, n int32) {
	first := make([]string, 0, maxListedNames)
	for i := range e.placed {
		if !isListed(&e.placed[i]) {
			continue
		}
		if n++; n <= maxListedNames {
			first = append(first, e.placed[i].Name)
		}
	}
	return v1alpha1.JoinFirst(first, maxListedNames, int(n)), n
}

func isDeferred(c *placedCluster) bool { return c.state == v1alpha1.ClusterDeferred }

// isQuarantined reports whether a cluster is in quarantine: no wave waits for it.
func (c *placedCluster) isQuarantined() bool { return c.OfflineReason == v1alpha1.ReasonQuarantined }

func pluralClusters(n int32) string {
	if n == 1 {
		return "1 cluster"
	}
	return fmt.Sprintf("%d clusters", n)
}

func clustersHave(n int32) string { return pluralClusters(n) + " " + verbFor(n, "has", "have") }

// ofClusters says how many of all clusters do what the verb says, in its form for one or for many.
func ofClusters(n, all int32, one, many string) string {
	if n == 1 || all == 1 {
		many = one
	}
	return fmt.Sprintf("%d of %s %s", n, pluralClusters(all), many)
}

func verbFor(n int32, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
