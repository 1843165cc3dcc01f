package answers

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// RolloutQuery is what a RolloutList shows.
type RolloutQuery struct {
	// Search is a part of a name or a version, Phase one of them or RolloutsInAttention.
	Search, Phase string
	// Sort is one of RolloutOrders. Descending reverses it; what is unknown stays last.
	Sort       string
	Descending bool
	// After is a name, for RolloutsByName. Offset skips the first.
	After         string
	Offset, Limit int
}

// ListRollouts returns a page of FleetDiskImages.
func ListRollouts(images []v1alpha1.FleetDiskImage, q RolloutQuery) readapi.RolloutList {
	list := readapi.RolloutList{Rollouts: []readapi.Rollout{}, All: len(images)}
	var matching []readapi.Rollout
	for i := range images {
		r := newRollout(&images[i])
		if r.Observed && r.Phase != "" {
			if list.Phases == nil {
				list.Phases = map[v1alpha1.RolloutPhase]int{}
			}
			list.Phases[r.Phase]++
		}
		if r.Attention {
			list.Attention++
		}
		if q.matches(&r) {
			matching = append(matching, r)
		}
	}
	list.Total = len(matching)
	slices.SortFunc(matching, q.compare)
	if q.After != "" {
		matching = slices.DeleteFunc(matching, func(r readapi.Rollout) bool { return r.Name <= q.After })
	}
	matching = matching[min(q.Offset, len(matching)):]
	list.Rollouts = append(list.Rollouts, matching[:min(q.Limit, len(matching))]...)
	if len(list.Rollouts) < len(matching) && len(list.Rollouts) > 0 && q.isByName() {
		list.Next = list.Rollouts[len(list.Rollouts)-1].Name
	}
	return list
}

func (q *RolloutQuery) isByName() bool {
	return (q.Sort == "" || q.Sort == readapi.RolloutsByName) && !q.Descending
}

func (q *RolloutQuery) matches(r *readapi.Rollout) bool {
	if !strings.Contains(strings.ToLower(r.Name+" "+r.Version), strings.ToLower(q.Search)) {
		return false
	}
	switch q.Phase {
	case "":
		return true
	case readapi.RolloutsInAttention:
		return r.Attention
	default:
		return r.Observed && string(r.Phase) == q.Phase
	}
}

func (q *RolloutQuery) compare(a, b readapi.Rollout) int {
	order := 0
	switch q.Sort {
	case readapi.RolloutsByPhase:
		order = cmp.Or(cmp.Compare(rankOf(&a), rankOf(&b)))
	case readapi.RolloutsByExpected:
		if (a.ExpectedAt == nil) != (b.ExpectedAt == nil) {
			if a.ExpectedAt == nil {
				return 1
			}
			return -1
		}
		if a.ExpectedAt != nil {
			order = a.ExpectedAt.Compare(b.ExpectedAt.Time)
		}
	case readapi.RolloutsByFailed:
		order = cmp.Compare(a.Clusters.AllFailed(), b.Clusters.AllFailed())
	case readapi.RolloutsByClusters:
		order = cmp.Compare(a.Clusters.Total, b.Clusters.Total)
	default:
		order = strings.Compare(a.Name, b.Name)
	}
	if q.Descending {
		order = -order
	}
	return cmp.Or(order, strings.Compare(a.Name, b.Name))
}

// rankOf sorts rollouts by what a person has to look at first.
func rankOf(r *readapi.Rollout) int {
	order := []v1alpha1.RolloutPhase{v1alpha1.RolloutFailed, v1alpha1.RolloutWaiting, v1alpha1.RolloutProgressing, "", v1alpha1.RolloutSucceeded}
	rank := 2 * slices.Index(order, r.Phase)
	if r.Attention {
		return rank - len(order)*2
	}
	return rank
}

func newRollout(img *v1alpha1.FleetDiskImage) readapi.Rollout {
	st := &img.Status
	return readapi.Rollout{
		Name: img.Name, Version: img.Spec.Version, Observed: st.ObservedGeneration == img.Generation,
		Phase: st.Phase, Reason: st.Reason, Message: st.Message, CurrentWave: st.CurrentWave,
		Clusters: st.Clusters, Waves: st.Waves, Failing: st.Failing, Blocked: st.Blocked, ExpectedAt: st.ExpectedAt, ExpectedReason: st.ExpectedReason,
		Attention: needsPerson(img),
	}
}

// needsPerson reports whether a rollout waits for a person, or has failed clusters.
func needsPerson(img *v1alpha1.FleetDiskImage) bool {
	st := observedStatus(img)
	return st.Phase == v1alpha1.RolloutFailed || rollout.NeedsPerson(st.Reason) || isStalled(st.Conditions) || st.Clusters.AllFailed() > 0
}

// DescribeRollout returns what is known of a FleetDiskImage.
func DescribeRollout(v *rollout.View) readapi.RolloutDetail {
	img := v.Image
	st := &img.Status
	d := readapi.RolloutDetail{
		Rollout: newRollout(img), UID: img.UID, Generation: img.Generation,
		Namespace: img.Spec.TargetNamespace, Image: img.ImageNameForVersion(img.Spec.Version), Source: img.Spec.Template.RedactedSource(),
		DiskBytes: img.Spec.Template.DiskSize.Value(), Lanes: []readapi.RolloutLane{}, OfflineClusters: img.Spec.Rollout.OfflineClusters,
		LastSuccessAt: st.LastSuccessAt, BlockedSince: st.BlockedSince, Changes: approval.ChangesSinceVersionBefore(img), Versions: []readapi.RolloutVersion{},
	}
	if m := img.Spec.Rollout.MaxFailures; m != nil {
		d.MaxFailures = m.String()
	}
	if p := img.Spec.Rollout.ProgressDeadline; p != nil {
		d.ProgressDeadline = p.Duration.String()
	}
	if img.Spec.Rollout.Paused {
		d.Paused = &readapi.RolloutPause{
			By:      v1alpha1.SanitizeUserName(img.Annotations[v1alpha1.AnnotationPausedBy], maxTextBytes),
			Because: v1alpha1.SanitizeText(img.Annotations[v1alpha1.AnnotationPausedBecause], maxTextBytes),
		}
	}
	if r := img.Spec.Retry; r != nil && r.Token != st.ObservedRetry {
		d.RetryRequested = true
	}
	if len(st.Versions) > 0 && st.Versions[0].Version == img.Spec.Version {
		d.Since = &st.Versions[0].Since
	}
	d.Lanes = newLanes(v)
	for i := range st.Versions {
		d.Versions = append(d.Versions, newVersion(img, &st.Versions[i]))
	}
	return d
}

func newVersion(img *v1alpha1.FleetDiskImage, v *v1alpha1.VersionStatus) readapi.RolloutVersion {
	version := readapi.RolloutVersion{Version: v.Version, Since: v.Since, Namespace: v.Namespace, Image: v.Image, Revision: v.Revision, CanGoBack: v.Template != nil && v.Version != img.Spec.Version}
	if v.Template == nil {
		version.NotRecorded = v1alpha1.SanitizeText(approval.WhyNotRecorded(v), maxTextBytes)
	}
	for i := range img.Spec.Approvals {
		if a := &img.Spec.Approvals[i]; a.Version == v.Version {
			version.Approvals = append(version.Approvals, *newApproval(a))
		}
	}
	return version
}

func newApproval(a *v1alpha1.Approval) *readapi.ApprovalGiven {
	if a == nil {
		return nil
	}
	return &readapi.ApprovalGiven{Wave: a.Wave, By: v1alpha1.SanitizeUserName(a.By, maxTextBytes), At: a.At}
}

// newLanes returns the waves in order, with the times that are known.
func newLanes(v *rollout.View) []readapi.RolloutLane {
	img := v.Image
	startedAt := map[string]time.Time{}
	for _, o := range rollout.ListOutlooks(*v) {
		if first, known := startedAt[o.Wave]; !o.PlannedAt.IsZero() && (!known || o.PlannedAt.Before(first)) {
			startedAt[o.Wave] = o.PlannedAt
		}
	}
	lanes := make([]readapi.RolloutLane, len(img.Status.Waves))
	for i := range img.Status.Waves {
		w := &img.Status.Waves[i]
		lanes[i] = readapi.RolloutLane{
			Name: w.Name, Clusters: w.Clusters, DoneAt: w.DoneAt, AtATime: approval.AtATime(img, w.Name),
			RequireApproval: approval.IsRequired(img, w.Name), Approval: newApproval(approval.FindComplete(img, w.Name)), PendingSources: len(approval.PendingSources(img, w.Name, nil)),
		}
		if wait := approval.MinSuccessTime(img, w.Name); wait > 0 {
			lanes[i].MinSuccessTime = wait.String()
		}
		if at, known := startedAt[w.Name]; known {
			t := storedtime.Truncate(at)
			lanes[i].StartedAt = &t
		}
	}
	return lanes
}

// toSeconds rounds up: nothing takes no time.
func toSeconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// RolloutClusterQuery is which clusters of a FleetDiskImage are shown; all by default.
type RolloutClusterQuery struct {
	State v1alpha1.ClusterState
	Wave  string
	// After is a name, and Offset skips the first that follow it.
	After         string
	Offset, Limit int
}

// ListRolloutClusters returns a page of the clusters of a FleetDiskImage, by name.
func ListRolloutClusters(v *rollout.View, q RolloutClusterQuery) readapi.RolloutClusters {
	outlooks := slices.DeleteFunc(rollout.ListOutlooks(*v), func(o rollout.Outlook) bool {
		return q.State != "" && o.State != q.State || q.Wave != "" && o.Wave != q.Wave
	})
	slices.SortFunc(outlooks, func(a, b rollout.Outlook) int { return strings.Compare(a.Cluster, b.Cluster) })
	list := readapi.RolloutClusters{Clusters: []readapi.RolloutCluster{}, Total: len(outlooks)}
	from, found := slices.BinarySearchFunc(outlooks, q.After, func(o rollout.Outlook, name string) int { return strings.Compare(o.Cluster, name) })
	if found {
		from++
	}
	from = min(len(outlooks), from+q.Offset)
	to := min(len(outlooks), from+q.Limit)
	for i := range outlooks[from:to] {
		list.Clusters = append(list.Clusters, newRolloutCluster(&outlooks[from+i]))
	}
	if to < len(outlooks) {
		list.Next = outlooks[to-1].Cluster
	}
	return list
}

func newRolloutCluster(o *rollout.Outlook) readapi.RolloutCluster {
	c := readapi.RolloutCluster{Cluster: o.Cluster, Wave: o.Wave, State: o.State, Reason: o.Reason, Message: v1alpha1.SanitizeText(o.Message, maxTextBytes)}
	if !o.PlannedAt.IsZero() {
		at := storedtime.Truncate(o.PlannedAt)
		c.StartedAt = &at
	}
	if o.Expected != nil {
		c.Expected = readapi.NewEstimate(*o.Expected)
	}
	return c
}
