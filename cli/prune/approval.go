package prune

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	hubprune "github.com/pelotech/ot-fleet/hub/prune"
)

// Approval is what an ImagePrune would delete, and once it is created, what it does.
type Approval struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	ReportSummary
	// Prune is the name of the ImagePrune.
	Prune      string `json:"prune"`
	ApprovedBy string `json:"approvedBy"`
	// Clusters, Images and Bytes that would go; Others of them were made by people.
	SelectedClusters int   `json:"selectedClusters"`
	SelectedImages   int   `json:"selectedImages"`
	SelectedBytes    int64 `json:"selectedBytes"`
	SelectedOthers   int   `json:"selectedOthers"`
	// LeftOut were made by people, and stay without includeOthers.
	LeftOut           v1alpha1.PruneTotal `json:"leftOut"`
	UndoWindowSeconds int64               `json:"undoWindowSeconds"`
	// Groups are the images, those that take most storage in front.
	Groups      []readapi.PruneGroup `json:"groups"`
	GroupsTotal int                  `json:"groupsTotal"`
	Limit       int                  `json:"limit"`
	Warnings    []string             `json:"warnings,omitempty"`
	// Created is true once the ImagePrune is.
	Created  bool     `json:"created"`
	Commands []string `json:"commands,omitempty"`

	now time.Time
}

// shownImages is how many images an approval names on the screen.
const shownImages = 5

// NewApproval returns what a prune of a report would delete. s has all parts of the report.
func NewApproval(now time.Time, r *v1alpha1.PruneReport, p *v1alpha1.ImagePrune, s *hubprune.Selection) *Approval {
	total := s.Total()
	a := &Approval{
		Envelope: render.NewEnvelope("PruneApproval"), ObservedAt: metav1.NewTime(now), ReportSummary: newSummary(r), Prune: p.Name, ApprovedBy: p.Spec.ApprovedBy,
		SelectedClusters: total.Clusters, SelectedImages: total.Images, SelectedBytes: total.Bytes, SelectedOthers: total.Others, LeftOut: s.LeftOut(),
		UndoWindowSeconds: int64(p.Spec.UndoWindowOrDefault().Seconds()), Groups: s.Groups(), Limit: shownImages, Warnings: s.Warnings(), now: now,
	}
	a.GroupsTotal = len(a.Groups)
	return a
}

// CheckApprovable returns why what spec selects of a report cannot be approved as digest names it.
func CheckApprovable(r *v1alpha1.PruneReport, digest string, spec *v1alpha1.ImagePruneSpec) error {
	switch {
	case r.Spec.Schedule != "" && r.Status.LastReport != "":
		return fmt.Errorf("PruneReport %s is a schedule: review its last report, %s", r.Name, r.Status.LastReport)
	case r.Spec.Schedule != "" && r.Status.Message != "":
		return fmt.Errorf("PruneReport %s is a schedule without a report yet: %s", r.Name, r.Status.Message)
	case r.Spec.Schedule != "":
		return fmt.Errorf("PruneReport %s is a schedule without a report yet", r.Name)
	case r.Status.Phase == v1alpha1.PruneReportFailed:
		return fmt.Errorf("PruneReport %s failed: %s", r.Name, r.Status.Message)
	case r.Status.Phase != v1alpha1.PruneReportComplete:
		return fmt.Errorf("PruneReport %s is not complete: %d of %s have answered", r.Name, r.Status.Clusters.Answered, render.Count(r.Status.Clusters.Total, "cluster"))
	case digest != "" && digest != r.Status.Digest:
		return fmt.Errorf("PruneReport %s has digest %s, not %s: it is another report than the one that was reviewed. Review it: %s", r.Name, r.Status.Digest, digest, ReviewCommand(r.Name, spec))
	}
	return nil
}

// CheckSelected returns an error where nothing would go.
func (a *Approval) CheckSelected() error {
	switch {
	case a.SelectedImages > 0:
		return nil
	case a.LeftOut.Count > 0:
		return fmt.Errorf("nothing would go: all %d images that are selected were made by people; --include-others deletes those, too", a.LeftOut.Count)
	case len(a.Warnings) > 0:
		return fmt.Errorf("nothing would go: %s", strings.Join(a.Warnings, "; "))
	default:
		return fmt.Errorf("nothing would go: PruneReport %s has no candidates", a.Report)
	}
}

// Question asks for the approval.
func (a *Approval) Question() string {
	return fmt.Sprintf("Delete %s of digest %s?", render.Count(a.SelectedImages, "image"), a.Digest)
}

// SetCreated says that the ImagePrune exists.
func (a *Approval) SetCreated() {
	a.Created = true
	a.Commands = []string{shellword.FormatCommand("kubectl ot prune status %s", a.Prune), shellword.FormatCommand("kubectl ot prune undo %s", a.Prune)}
}

// Names is the ImagePrune.
func (a *Approval) Names() []string { return []string{render.Reference("ImagePrune", a.Prune)} }

// Draw draws the screen.
func (a *Approval) Draw(p *render.Page) {
	if a.Created {
		p.Lines(render.Done.With("ImagePrune %s created, approved by %s", a.Prune, a.ApprovedBy))
		p.Line(render.Text("Each image serves on for %s. How far it is, and how to take it back:", a.undoWindow()))
		for _, command := range a.Commands {
			p.Command(command)
		}
		return
	}
	p.Line(render.Bold("PRUNE %s", a.Prune), render.Text(" of report %s as %s", a.Report, a.ApprovedBy))
	line := render.Line{render.Text("  %s in %s, %s", render.Count(a.SelectedImages, "image"), render.Count(a.SelectedClusters, "cluster"), render.Bytes(a.SelectedBytes))}
	if a.SelectedOthers > 0 {
		line = append(line, render.Text("; %d of them made by people", a.SelectedOthers))
	}
	p.Line(line...)
	p.Line(append(render.Words("  "), a.headline(a.now)...)...)
	p.Line(render.Text("  each serves on for %s: a machine that comes to need it keeps it, and undo keeps all", a.undoWindow()))
	if a.LeftOut.Count > 0 {
		p.Line(render.Text("  made by people, and left out: %s, %s", render.Count(a.LeftOut.Count, "image"), render.Bytes(a.LeftOut.Bytes)))
	}
	a.drawUnknown(p)
	for _, w := range a.Warnings {
		p.Lines(render.Attention.With("%s", w))
	}
	p.Gap()
	t := p.Table(render.Column{Title: "IMAGE", Elastic: true, Min: 14}, render.Column{Title: "CLUSTERS", Right: true, Drop: 1}, render.Column{Title: "BYTES", Right: true}, render.Column{Title: "OLDEST", Right: true})
	for i, g := range a.Groups {
		if i == a.Limit {
			t.AddNote(render.Text("the %d largest of %d", a.Limit, a.GroupsTotal))
			break
		}
		since := "unknown"
		if g.OldestUnreferencedSince != nil {
			since = render.Age(a.now, g.OldestUnreferencedSince.Time)
		}
		t.Row(render.Cells(g.Name, render.Number(g.Clusters), render.Bytes(g.Bytes), since)...)
	}
	p.Gap()
}

func (a *Approval) undoWindow() string {
	return render.Duration(time.Duration(a.UndoWindowSeconds) * time.Second)
}

// CheckPatterns returns what is wrong with --images and --clusters, in words of the flags.
func CheckPatterns(images, clusters []string) error {
	for _, pattern := range images {
		if namespace, name, ok := strings.Cut(pattern, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("--images %s: must be namespace/name, where * stands for any characters, as in 'vmdi-farm/ubuntu-*'", pattern)
		}
	}
	if slices.Contains(clusters, "") {
		return fmt.Errorf("--clusters %s: has an empty name", strings.Join(clusters, ","))
	}
	return nil
}
