package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Action is a change of a rollout by a person: pause, resume, abort or retry.
type Action struct {
	render.Envelope
	Name    string `json:"name"`
	Version string `json:"version"`
	// Done says what was done, in one sentence.
	Done string `json:"done"`
	// Moving clusters finish; ToApply do not begin.
	Moving  int32 `json:"moving"`
	ToApply int32 `json:"toApply"`
	// Failed clusters start over, for retry.
	Failed int32 `json:"failed"`
	// BackTo is the version that is wanted again, FromVersion the one that it replaces.
	BackTo      string `json:"backTo,omitempty"`
	FromVersion string `json:"fromVersion,omitempty"`
	// Notes are what else a person has to know.
	Notes   []string `json:"notes,omitempty"`
	Command string   `json:"command,omitempty"`

	// isImage: Name is that of a VMDiskImage of a member.
	isImage bool
}

// Draw draws what was done.
func (a *Action) Draw(p *render.Page) {
	p.Lines(render.Done.With("%s", a.Done))
	for _, note := range a.Notes {
		p.Lines(render.Attention.With("%s", note))
	}
	if a.Command != "" {
		p.Command(a.Command)
	}
}

// Names is the FleetDiskImage, or the VMDiskImage of a member.
func (a *Action) Names() []string {
	if a.isImage {
		return []string{render.Reference("VMDiskImage", a.Name)}
	}
	return []string{render.Reference("FleetDiskImage", a.Name)}
}

func newAction(img *v1alpha1.FleetDiskImage) *Action {
	c := img.Status.Clusters
	return &Action{
		Envelope: render.NewEnvelope("RolloutAction"), Name: img.Name, Version: img.Spec.Version,
		Moving: c.Progressing, ToApply: c.ToApply, Failed: c.AllFailed(), Command: shellword.FormatCommand("kubectl ot rollout watch %s", img.Name),
	}
}

// maxPauseReason bounds the reason that is stored.
const maxPauseReason = 512

// SetPaused pauses or resumes a rollout in place.
func SetPaused(img *v1alpha1.FleetDiskImage, paused bool, by, reason string) *Action {
	a := newAction(img)
	switch {
	case paused && img.Spec.Rollout.Paused:
		a.Done = "it is paused already"
	case !paused && !img.Spec.Rollout.Paused:
		a.Done = "it is not paused"
	case paused:
		a.Done = fmt.Sprintf("paused: %s, %s", describeMoving(a.Moving), describeKept(a.ToApply))
		a.Command = shellword.FormatCommand("kubectl ot rollout resume %s", img.Name)
	default:
		a.Done = fmt.Sprintf("resumed: %s", describeNext(a.ToApply))
	}
	if img.Spec.Rollout.Paused == paused {
		return a
	}
	img.Spec.Rollout.Paused = paused
	if !paused {
		delete(img.Annotations, v1alpha1.AnnotationPausedBy)
		delete(img.Annotations, v1alpha1.AnnotationPausedBecause)
		return a
	}
	metav1.SetMetaDataAnnotation(&img.ObjectMeta, v1alpha1.AnnotationPausedBy, v1alpha1.SanitizeText(by, maxPauseReason))
	if reason != "" {
		metav1.SetMetaDataAnnotation(&img.ObjectMeta, v1alpha1.AnnotationPausedBecause, v1alpha1.SanitizeText(reason, maxPauseReason))
	}
	return a
}

// Abort stops the rollout of a version in place. Without backTo it is paused. Else that version
// is wanted again, by the template that the status has recorded of it, and it is not paused:
// where its images still are, nothing is downloaded.
//
// The hub's admission policy takes approvals of that version for new ones: one that the caller may
// not give is refused. So they go; where the caller may approve, they are given again, as theirs.
func Abort(img *v1alpha1.FleetDiskImage, backTo string, caller Caller, reason string, now time.Time) (*Action, error) {
	if backTo == "" {
		return SetPaused(img, true, caller.Name, reason), nil
	}
	if backTo == img.Spec.Version {
		return nil, fmt.Errorf("FleetDiskImage %s is at version %s already", img.Name, backTo)
	}
	var known []string
	for i := range img.Status.Versions {
		v := &img.Status.Versions[i]
		if v.Version != backTo {
			if v.Version != img.Spec.Version {
				known = append(known, v.Version)
			}
			continue
		}
		if v.Template == nil {
			return nil, fmt.Errorf("the template of %s %s is not recorded: %s. Publish it with %s, and -f for its overrides", img.Name, backTo, approval.WhyNotRecorded(v),
				shellword.FormatCommand("kubectl ot image publish %s --version %s --url …", img.Name, backTo))
		}
		formerOverrides := approval.RecordedItems(v)
		back := img.Spec.Template.WithSourceFields(v.Template)
		if back.Revision() != v.Revision {
			return nil, fmt.Errorf("the recorded template of %s %s makes another revision than its images have: publish it anew", img.Name, backTo)
		}
		a := newAction(img)
		a.BackTo, a.FromVersion = backTo, img.Spec.Version
		a.Done = fmt.Sprintf("version %s is wanted again: of %s, %s, and %s", backTo, img.Spec.Version, describeMoving(a.Moving), describeKept(a.ToApply))
		a.Notes = append(a.Notes, fmt.Sprintf("%s stays where it is, and clusters that have %s download nothing", img.Spec.Version, backTo))
		if !equality.Semantic.DeepEqual(formerOverrides, img.Spec.Overrides) && len(formerOverrides)+len(img.Spec.Overrides) > 0 {
			a.Notes = append(a.Notes, numbers.Sprintf("spec.overrides become those of %s again: %s instead of %d", backTo, render.Count(len(formerOverrides), "override"), len(img.Spec.Overrides)))
		}
		if v.Namespace != img.Spec.TargetNamespace || v.Image != img.ImageNameForVersion(backTo) {
			a.Notes = append(a.Notes, fmt.Sprintf("spec.targetNamespace and spec.imageName become those of its images again, %s/%s", v.Namespace, v.Image))
			img.Spec.TargetNamespace, img.Spec.ImageName = v.Namespace, strings.TrimSuffix(v.Image, "-"+v.Version)
			if img.Spec.ImageName == img.Name {
				img.Spec.ImageName = ""
			}
		}
		a.Notes = append(a.Notes, caller.renewApprovals(img, backTo, now)...)
		img.Spec.Version, img.Spec.Template, img.Spec.Overrides = backTo, *back, slices.Clone(formerOverrides)
		SetPaused(img, false, caller.Name, reason)
		return a, nil
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("FleetDiskImage %s has had no other version", img.Name)
	}
	return nil, fmt.Errorf("FleetDiskImage %s does not remember version %s: it remembers %s", img.Name, backTo, strings.Join(known, ", "))
}

// Caller is who goes back, and whether they may approve.
type Caller struct {
	Name       string
	MayApprove bool
}

// renewApprovals removes the approvals of a version, gives them again where the caller may, and
// says so.
func (c Caller) renewApprovals(img *v1alpha1.FleetDiskImage, version string, now time.Time) (notes []string) {
	var renewed []string
	kept := []v1alpha1.Approval{}
	for _, a := range img.Spec.Approvals {
		if a.Version != version {
			kept = append(kept, a)
		} else if c.MayApprove {
			kept = append(kept, v1alpha1.Approval{Wave: a.Wave, Version: version, Sources: a.Sources, By: c.Name, At: new(storedtime.Truncate(now))})
			renewed = append(renewed, a.Wave)
		}
	}
	img.Spec.Approvals = kept
	if len(renewed) > 0 {
		notes = append(notes, fmt.Sprintf("you approve %s again for wave %s, as it was approved before", version, strings.Join(renewed, ", ")))
	}
	if need := missingApprovals(img, version); len(need) > 0 {
		notes = append(notes, fmt.Sprintf("wave %s needs approval of %s, also where it was given before", strings.Join(need, ", "), version))
	}
	return notes
}

func missingApprovals(img *v1alpha1.FleetDiskImage, version string) (waves []string) {
	for i := range img.Spec.Rollout.Waves {
		w := &img.Spec.Rollout.Waves[i]
		if w.RequireApproval && approval.FindApproval(img, w.Name, version) == nil {
			waves = append(waves, w.Name)
		}
	}
	return waves
}

// Retry starts the image over where it has failed, in place.
func Retry(img *v1alpha1.FleetDiskImage, clusters []string, now time.Time) (*Action, error) {
	a := newAction(img)
	if IsObserved(img) && a.Failed == 0 {
		return nil, fmt.Errorf("%s %s has failed in no cluster: there is nothing to retry", img.Name, img.Spec.Version)
	}
	failing := func(cluster string) bool {
		return slices.ContainsFunc(img.Status.Failing, func(f v1alpha1.ClusterSummary) bool { return f.Cluster == cluster })
	}
	for _, cluster := range clusters {
		if IsObserved(img) && int(a.Failed) <= len(img.Status.Failing) && !failing(cluster) {
			return nil, fmt.Errorf("%s %s has not failed in %s: there is nothing to retry", img.Name, img.Spec.Version, cluster)
		}
	}
	where := render.Count(a.Failed, "cluster")
	if len(clusters) > 0 {
		where = strings.Join(clusters, ", ")
	}
	// A request that the hub has not given to all plans yet is not lost by another one.
	if r := img.Spec.Retry; r != nil && r.Token != img.Status.ObservedRetry && len(clusters) > 0 {
		if len(r.Clusters) == 0 {
			clusters = nil
		} else {
			clusters = slices.Compact(slices.Sorted(slices.Values(slices.Concat(clusters, r.Clusters))))
		}
	}
	token := now.UTC().Format("2006-01-02T15:04:05.000Z")
	img.Spec.Retry = &v1alpha1.RetryRequest{Token: token, Clusters: clusters}
	a.Done = fmt.Sprintf("%s %s starts over in %s, with all attempts", img.Name, img.Spec.Version, where)
	a.Command = shellword.FormatCommand("kubectl ot image wait %s", img.Name)
	return a, nil
}

// CheckRetryStored tells a hub whose CustomResourceDefinitions do not know spec.retry: its API
// server drops the field without a word.
func CheckRetryStored(stored *v1alpha1.FleetDiskImage) error {
	if stored.Spec.Retry == nil {
		return errors.New("the hub does not know spec.retry, and nothing was retried: upgrade chart ot-hub, or retry in the cluster itself, with --cluster and --live")
	}
	return nil
}

// History are the versions that a FleetDiskImage remembers.
type History struct {
	render.Envelope
	Name     string           `json:"name"`
	Versions []HistoryVersion `json:"versions"`

	now time.Time
}

// HistoryVersion is one version. Approvals name who approved which wave.
type HistoryVersion struct {
	Version   string         `json:"version"`
	Since     metav1.Time    `json:"since"`
	Image     string         `json:"image"`
	Revision  string         `json:"revision"`
	BackTo    bool           `json:"canGoBackTo"`
	Why       string         `json:"why,omitempty"`
	Approvals []ApprovedWave `json:"approvals,omitempty"`
}

// NewHistory reads the status.
func NewHistory(img *v1alpha1.FleetDiskImage, now time.Time) *History {
	h := &History{Envelope: render.NewEnvelope("RolloutHistory"), Name: img.Name, Versions: []HistoryVersion{}, now: now}
	for i := range img.Status.Versions {
		v := &img.Status.Versions[i]
		entry := HistoryVersion{Version: v.Version, Since: v.Since, Image: v.Namespace + "/" + v.Image, Revision: v.Revision, BackTo: v.Template != nil}
		if v.Template == nil {
			entry.Why = "template not recorded: " + approval.WhyNotRecorded(v)
		}
		for _, a := range img.Spec.Approvals {
			if a.Version == v.Version {
				entry.Approvals = append(entry.Approvals, ApprovedWave{Name: a.Wave, By: a.By, At: a.At, Sources: a.Sources})
			}
		}
		h.Versions = append(h.Versions, entry)
	}
	return h
}

// Names is the FleetDiskImage.
func (h *History) Names() []string { return []string{render.Reference("FleetDiskImage", h.Name)} }

// Draw draws the versions, the newest first.
func (h *History) Draw(p *render.Page) {
	t := p.Table(render.Column{Title: "VERSION"}, render.Column{Title: "SINCE", Right: true}, render.Column{Title: "IMAGE", Elastic: true, Drop: 2},
		render.Column{Title: "REVISION", Drop: 3}, render.Column{Title: "APPROVED BY", Elastic: true, Drop: 1}, render.Column{Title: "BACK TO IT", Elastic: true, Min: 8})
	for i, v := range h.Versions {
		var by []string
		for _, a := range v.Approvals {
			by = append(by, a.Name+": "+a.By)
		}
		back := render.Done.With("can")
		switch {
		case i == 0:
			back = render.Running.With("current")
		case !v.BackTo:
			back = render.Unknown.With("%s", v.Why)
		}
		t.Row(render.Words(v.Version), render.Words(render.Age(h.now, v.Since.Time)), render.Words(v.Image), render.Words(v.Revision), render.Words(strings.Join(by, ", ")), back)
	}
}

// RetryImage says what a retry in one member does.
func RetryImage(img *v1alpha1.VMDiskImage) (*Action, error) {
	st := &img.Status
	a := &Action{Envelope: render.NewEnvelope("RolloutAction"), Name: img.Name, isImage: true}
	switch {
	case st.Phase == v1alpha1.PhaseFailed:
		a.Done = fmt.Sprintf("%s/%s starts over, with all attempts", img.Namespace, img.Name)
	case st.Phase == v1alpha1.PhaseSucceeded && st.Reason == v1alpha1.ReasonReady:
		return nil, fmt.Errorf("%s/%s has not failed: it is %s, %s: there is nothing to retry", img.Namespace, img.Name, st.Phase, st.Reason)
	default:
		a.Done = fmt.Sprintf("%s/%s has all attempts again", img.Namespace, img.Name)
		a.Notes = append(a.Notes, fmt.Sprintf("it has not failed: it is %s; an import that runs goes on, and a wait for the next attempt ends", explain.FormatState(string(st.Phase), string(st.Reason))))
	}
	return a, nil
}

func describeMoving(n int32) string {
	if n == 1 {
		return "1 cluster in progress will finish"
	}
	return render.Count(n, "cluster") + " in progress will finish"
}

func describeKept(n int32) string {
	if n == 1 {
		return "1 does not begin"
	}
	return numbers.Sprintf("%d do not begin", n)
}

func describeNext(n int32) string {
	if n == 1 {
		return "1 cluster begins as its turn comes"
	}
	return render.Count(n, "cluster") + " begin as their turn comes"
}
