package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// phaseVerdict is what the status says in short.
type phaseVerdict struct {
	phase   v1alpha1.RolloutPhase
	reason  string
	message string
}

func waitingVerdict(reason, format string, args ...any) phaseVerdict {
	return phaseVerdict{v1alpha1.RolloutWaiting, reason, fmt.Sprintf(format, args...)}
}

// decidePhase says how far the rollout is, by what keeps further clusters from
// beginning.
func (s *evaluation) decidePhase(b blocker) phaseVerdict {
	v := phaseVerdict{v1alpha1.RolloutWaiting, b.reason, s.blockerMessage(b)}
	switch {
	case b.reason == v1alpha1.ReasonRolledOut:
		v.phase = v1alpha1.RolloutSucceeded
	case s.counts.Progressing > 0:
		v.phase = v1alpha1.RolloutProgressing
	case b.reason == v1alpha1.ReasonMaxFailures:
		v.phase = v1alpha1.RolloutFailed
	}
	if empty := s.emptyWaves(); s.counts.Total > 0 && len(empty) > 0 {
		v.message += fmt.Sprintf(". No cluster that is placed is in wave %s: is its clusterSelector right?", strings.Join(empty, ", "))
	}
	return v
}

// blockerMessage holds nothing that changes with time alone: each change is a write.
func (s *evaluation) blockerMessage(b blocker) string {
	c := &s.counts
	wave, of := "", &stateCounts{}
	if s.currentWave < len(s.waves) {
		wave, of = s.waves[s.currentWave].name, &s.waves[s.currentWave].counts
	}
	rollout := &s.Image.Spec.Rollout
	switch b.reason {
	case v1alpha1.ReasonNoClusters:
		return fmt.Sprintf("spec.placement selects none of the fleet's %s: mend it, or label the MemberClusters", pluralClusters(int32(len(s.Clusters))))
	case v1alpha1.ReasonMaxFailures:
		return fmt.Sprintf("%s failed (%s), where maxFailures allows %d: no more are begun until fewer have. See status.failing; "+
			"mend the cause in those clusters, or set another version, or a higher spec.rollout.maxFailures",
			clustersHave(int32(c.failures())), s.listClusterNames(isFailed), s.allowedFailures())
	case v1alpha1.ReasonRolloutPaused:
		return fmt.Sprintf("spec.rollout.paused is set: of %s, %d are to begin and do not", pluralClusters(c.Total), c.ToApply)
	case v1alpha1.ReasonMinSuccessTime:
		return fmt.Sprintf("wave %s begins at %s: what is before it has to have been done for minSuccessTime", wave, b.until.UTC().Format(time.RFC3339))
	case v1alpha1.ReasonAwaitingApproval:
		return fmt.Sprintf("wave %s, with %s to begin, is to be approved: add {wave: %s, version: %q, by: <your user name>} to spec.approvals", wave, pluralClusters(of.ToApply), wave, s.version.Version)
	case v1alpha1.ReasonMaxConcurrency:
		return fmt.Sprintf("%d of %s of wave %s are on their way, where maxConcurrency allows %d; %d wait for their turn", of.Progressing, pluralClusters(of.Total), wave, b.limit, of.ToApply)
	case v1alpha1.ReasonPlanFull:
		return fmt.Sprintf("%s of wave %s cannot begin: their plans have no room for another image, the most is %d. Have other FleetDiskImages leave them out, or exclude them in spec.placement.excludedClusters", pluralClusters(of.ToApply), wave, v1alpha1.MaxPlannedImages)
	case v1alpha1.ReasonOfflineClusters:
		if rollout.OfflineClusters != v1alpha1.OfflineWait || wave == "" {
			return fmt.Sprintf("all of %s are offline (%s); they catch up when they are back", pluralClusters(c.Total), s.listClusterNames(isDeferred))
		}
		return fmt.Sprintf("wave %s waits for %d that are offline (%s), as spec.rollout.offlineClusters asks for", wave, of.Deferred, s.listClusterNames(isDeferred))
	case v1alpha1.ReasonAwaitingClusters:
		return fmt.Sprintf("%d of %s of wave %s are on their way, and none is left to begin", of.Progressing, pluralClusters(of.Total), wave)
	default:
		return s.rolledOutMessage()
	}
}

// rolledOutMessage says what there is, and what is not there and no matter.
func (s *evaluation) rolledOutMessage() string {
	c := &s.counts
	text := fmt.Sprintf("%d of %s have %s/%s", c.Succeeded, pluralClusters(c.Total), s.version.Namespace, s.version.Image)
	if n := c.failures(); n > 0 {
		text += fmt.Sprintf("; %d failed, where maxFailures allows %d: see status.failing", n, s.allowedFailures())
	}
	if c.Deferred > 0 {
		text += fmt.Sprintf("; %d are offline and catch up when they are back", c.Deferred)
	}
	return text
}

// invalidSelectorVerdict says which selector cannot be read.
func invalidSelectorVerdict(err error) phaseVerdict {
	return waitingVerdict(v1alpha1.ReasonSelectorInvalid, "%s. Mend it: until then no cluster is begun, and plans stay as they are", strings.Join(strings.Fields(err.Error()), " "))
}

func (s *evaluation) conflictVerdict() phaseVerdict {
	return waitingVerdict(v1alpha1.ReasonNameConflict, "FleetDiskImage %s is older and has, or had, VMDiskImages of the same name in namespace %s: no cluster begins, and what clusters have of this one is kept. "+
		"Give this one another spec.imageName or spec.targetNamespace, or delete the other", s.Conflict, s.version.Namespace)
}

func (s *evaluation) deletingVerdict() phaseVerdict {
	offline := 0
	named := make([]string, 0, maxListedNames)
	for _, holder := range s.Holders {
		i, found := slices.BinarySearchFunc(s.Clusters, holder, func(c Cluster, name string) int { return strings.Compare(c.Name, name) })
		dark := found && s.Clusters[i].OfflineReason != ""
		if dark {
			offline++
		}
		if len(named) < maxListedNames {
			if dark {
				holder += " (offline: " + s.Clusters[i].OfflineReason + ")"
			}
			named = append(named, holder)
		}
	}
	text := strings.Join(named, ", ")
	if more := len(s.Holders) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if text == "" {
		return waitingVerdict(v1alpha1.ReasonDeletingImages, "it is being deleted")
	}
	return waitingVerdict(v1alpha1.ReasonDeletingImages, "it is being deleted with its images (deletionPolicy: Delete), and %s still have some: %s; %d are offline. "+
		"An image goes when no VirtualMachine references it any more. To leave the images where they are and be done, set spec.deletionPolicy: Retain",
		pluralClusters(int32(len(s.Holders))), text, offline)
}

// emptyWaves are those of the spec that no cluster is in.
func (s *evaluation) emptyWaves() (names []string) {
	for i := range s.waves {
		if s.waves[i].counts.Total == 0 {
			names = append(names, s.waves[i].name)
		}
	}
	return names
}

// listClusterNames returns the first clusters of a kind.
func (s *evaluation) listClusterNames(of func(v1alpha1.ClusterState) bool) string {
	var b strings.Builder
	n := 0
	for i := range s.clusters {
		if !of(s.clusters[i].state) {
			continue
		}
		if n++; n > maxListedNames {
			continue
		}
		if n > 1 {
			b.WriteString(", ")
		}
		b.WriteString(s.clusters[i].Name)
	}
	if n > maxListedNames {
		fmt.Fprintf(&b, " and %d more", n-maxListedNames)
	}
	return b.String()
}

func isDeferred(state v1alpha1.ClusterState) bool { return state == v1alpha1.ClusterDeferred }

func pluralClusters(n int32) string {
	if n == 1 {
		return "1 cluster"
	}
	return fmt.Sprintf("%d clusters", n)
}

func clustersHave(n int32) string {
	if n == 1 {
		return "1 cluster has"
	}
	return fmt.Sprintf("%d clusters have", n)
}
