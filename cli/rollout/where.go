package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Placement tells which clusters a FleetDiskImage selects.
type Placement struct {
	placement *v1alpha1.Placement
	selector  labels.Selector
}

// NewPlacement parses a placement.
func NewPlacement(p *v1alpha1.Placement) (*Placement, error) {
	selector, err := v1alpha1.ParseSelector(p.ClusterSelector)
	if err != nil {
		return nil, fmt.Errorf("placement.clusterSelector: %w", err)
	}
	return &Placement{p, selector}, nil
}

// Selects reports whether a cluster is selected. A missing selector selects none.
func (p *Placement) Selects(m *v1alpha1.MemberCluster) bool {
	return !slices.Contains(p.placement.ExcludedClusters, m.Name) &&
		(p.selector.Matches(labels.Set(m.Labels)) || slices.Contains(p.placement.ClusterNames, m.Name))
}

// WhyUnknown says why a cluster's report cannot be relied on; empty: it can.
func WhyUnknown(m *v1alpha1.MemberCluster) string {
	switch {
	case m.Spec.Quarantine != nil:
		return "it is in quarantine: " + m.Spec.Quarantine.Reason
	case m.Status.LastReport == nil:
		return "it has never reported"
	case m.Status.SilentSince != nil:
		return "it is silent since " + m.Status.SilentSince.UTC().Format("2006-01-02T15:04:05Z")
	default:
		return ""
	}
}

// ListReported returns the images that a member has or is to have. Only pages that its root lists count.
func ListReported(reports []v1alpha1.ClusterReport) (images []v1alpha1.ReportedImage) {
	listed := map[string]bool{}
	for i := range reports {
		if root := reports[i].Root; root != nil && reports[i].Name == v1alpha1.MailboxName {
			for _, page := range root.Pages {
				listed[page.Name] = true
			}
		}
	}
	slices.SortFunc(reports, func(a, b v1alpha1.ClusterReport) int { return cmp.Compare(b.Sequence, a.Sequence) })
	for i := range reports {
		if r := &reports[i]; r.Page != nil && listed[r.Name] {
			images = append(images, r.Page.Images...)
		}
	}
	return slices.DeleteFunc(images, func(img v1alpha1.ReportedImage) bool { return img.IsPruned() })
}

// FindReported returns what a member reports of an image; nil where it has none. An image that
// has moved to another page may be on two: the newest comes first.
func FindReported(images []v1alpha1.ReportedImage, namespace, name string) *v1alpha1.ReportedImage {
	for i := range images {
		if images[i].Namespace == namespace && images[i].Name == name {
			return &images[i]
		}
	}
	return nil
}

// Where is which clusters have which version.
type Where struct {
	render.Envelope
	Name     string         `json:"name"`
	Versions []string       `json:"versions"`
	Clusters []WhereCluster `json:"clusters"`
	// NotRead are versions of which nothing is known: Notes say why.
	NotRead []string `json:"notRead,omitempty"`
	Notes   []string `json:"notes,omitempty"`

	// isUnlike: spec.overrides give clusters others than the template.
	isUnlike  bool
	overrides *override.Overrides
}

// WhereCluster is a row. Unknown says why nothing is known of it.
type WhereCluster struct {
	Cluster string          `json:"cluster"`
	Placed  bool            `json:"placed"`
	Unknown string          `json:"unknown,omitempty"`
	Has     map[string]InIt `json:"has"`
	// Effective is what it is to have of the current version; absent where it is not placed.
	Effective *readapi.EffectiveImage `json:"effective,omitempty"`
}

// InIt is how a version is in a cluster. Without a phase it is planned, and absent for the reason, or
// since the cluster rejected it.
type InIt struct {
	Phase      v1alpha1.Phase  `json:"phase"`
	Reason     v1alpha1.Reason `json:"reason,omitempty"`
	Rejected   bool            `json:"rejected,omitempty"`
	References int32           `json:"references"`
}

// NewInIt returns how an image is, as its cluster reports it.
func NewInIt(r *v1alpha1.ReportedImage) InIt {
	plan := r.UnappliedPlan()
	return InIt{Phase: r.Phase, Reason: r.ReasonOrPlan(), Rejected: plan != nil && plan.State == v1alpha1.PlanItemRejected, References: r.References}
}

// NewWhere makes a table without rows.
func NewWhere(img *v1alpha1.FleetDiskImage) (*Where, error) {
	w := &Where{Envelope: render.NewEnvelope("Where"), Name: img.Name, Versions: []string{}, Clusters: []WhereCluster{}, isUnlike: len(img.Spec.Overrides) > 0}
	for i := range img.Status.Versions {
		w.Versions = append(w.Versions, img.Status.Versions[i].Version)
	}
	var err error
	w.overrides, err = override.Parse(img)
	return w, err
}

// Add adds a cluster that is not known to have any version.
func (w *Where) Add(m *v1alpha1.MemberCluster, placed bool) {
	c := WhereCluster{Cluster: m.Name, Placed: placed, Unknown: WhyUnknown(m), Has: map[string]InIt{}}
	if placed {
		c.Effective = approval.DescribeEffective(w.overrides.For(m.Name, m.Labels))
	}
	w.Clusters = append(w.Clusters, c)
}

// Put says how a version is in a cluster that was added.
func (w *Where) Put(cluster, version string, in InIt) {
	for i := range w.Clusters {
		if w.Clusters[i].Cluster == cluster {
			w.Clusters[i].put(version, in)
		}
	}
}

// put leaves out an image that is planned and absent, unless a person is waited for.
func (c *WhereCluster) put(version string, in InIt) {
	if in.Phase != "" || in.Reason != "" || in.Rejected {
		c.Has[version] = in
	}
}

// Read fills a row by what the cluster reports.
func (c *WhereCluster) Read(img *v1alpha1.FleetDiskImage, reported []v1alpha1.ReportedImage) {
	for i := range img.Status.Versions {
		v := &img.Status.Versions[i]
		if r := FindReported(reported, v.Namespace, v.Image); r != nil {
			c.put(v.Version, NewInIt(r))
		}
	}
}

// NoteVersionsWithoutTemplate names the versions that are not looked for: their source is unknown.
func (w *Where) NoteVersionsWithoutTemplate(img *v1alpha1.FleetDiskImage) {
	for i := range img.Status.Versions {
		if v := &img.Status.Versions[i]; v.Template == nil {
			w.NotRead = append(w.NotRead, v.Version)
			w.Notes = append(w.Notes, fmt.Sprintf("%s is not looked for: its template is not recorded, since %s", v.Version, approval.WhyNotRecorded(v)))
		}
	}
}

// DropOthers drops the clusters that neither are to have the image nor have it.
func (w *Where) DropOthers() {
	w.Clusters = slices.DeleteFunc(w.Clusters, func(c WhereCluster) bool { return !c.Placed && len(c.Has) == 0 })
}

// Names are the clusters.
func (w *Where) Names() []string {
	names := make([]string, len(w.Clusters))
	for i := range w.Clusters {
		names[i] = render.Reference("MemberCluster", w.Clusters[i].Cluster)
	}
	return names
}

// WatchItems are the clusters.
func (w *Where) WatchItems() []render.Item {
	items := make([]render.Item, len(w.Clusters))
	for i := range w.Clusters {
		c := &w.Clusters[i]
		var states []render.Line
		for _, version := range w.Versions {
			states = append(states, append(render.Words(version+" "), c.cell(version, slices.Contains(w.NotRead, version))...))
		}
		items[i] = render.Item{Key: c.Cluster, State: render.Join(append(states, c.notes()...), "  ")}
	}
	return items
}

// Draw draws clusters × versions, the newest first, and what each cluster is to have where that is
// not the same for all, or with -o wide. Of one cluster, it draws each field.
func (w *Where) Draw(p *render.Page) {
	columns := []render.Column{{Title: "CLUSTER", Elastic: true, Min: 8}}
	for i, version := range w.Versions {
		columns = append(columns, render.Column{Title: version, Drop: i})
	}
	t := p.Table(columns...)
	for i := range w.Clusters {
		c := &w.Clusters[i]
		cells := []render.Line{render.Words(c.Cluster)}
		for _, version := range w.Versions {
			cells = append(cells, c.cell(version, slices.Contains(w.NotRead, version)))
		}
		t.Row(cells...)
		if c.Effective != nil && (w.isUnlike || p.Wide) {
			t.AddNote(render.Text("%s", c.describeEffective()))
		}
		for _, note := range c.notes() {
			t.AddNote(note...)
		}
	}
	if len(w.Clusters) == 1 && w.Clusters[0].Effective != nil && (w.isUnlike || p.Wide) {
		w.Clusters[0].drawFields(p)
	}
	for _, note := range w.Notes {
		p.Lines(render.Attention.With("%s", note))
	}
}

// notes say what is not known of a cluster, and why it cannot begin.
func (c *WhereCluster) notes() (lines []render.Line) {
	if c.Unknown != "" {
		lines = append(lines, render.Unknown.With("%s", c.Unknown))
	}
	if c.Effective != nil && c.Effective.Waits != "" {
		lines = append(lines, render.Attention.With("it cannot begin: %s", c.Effective.Waits))
	}
	return lines
}

// describeEffective says the source, the storage class and which overrides they and other fields are
// from.
func (c *WhereCluster) describeEffective() string {
	storageClass, from := "the default storage class", []string{}
	for _, field := range c.Effective.Fields {
		if field.Field == "storageClass" && field.Value != "" {
			storageClass = "storage class " + field.Value
		}
		if field.From != readapi.FromTemplate {
			from = append(from, field.From)
		}
	}
	from = slices.Compact(slices.Sorted(slices.Values(from)))
	return fmt.Sprintf("%s, %s, from %s", c.Effective.Source, storageClass, cmp.Or(strings.Join(from, " and "), "the template"))
}

func (c *WhereCluster) drawFields(p *render.Page) {
	p.Gap()
	t := p.Table(render.Column{Title: "FIELD"}, render.Column{Title: "VALUE", Elastic: true, Min: 8}, render.Column{Title: "FROM"})
	for _, field := range c.Effective.Fields {
		value := render.Words(field.Value)
		if field.Value == "" {
			value = render.Line{render.Dim("(removed)")}
		}
		t.Row(render.Words(field.Field), value, render.Words(field.From))
	}
}

func (c *WhereCluster) cell(version string, notRead bool) render.Line {
	in, ok := c.Has[version]
	used := ""
	if in.References > 0 {
		used = " " + render.Count(in.References, "machine")
	}
	switch {
	case !ok && (notRead || c.Unknown != ""):
		return render.Unknown.With("unknown")
	case !ok:
		return render.Words("-")
	case in.Phase == v1alpha1.PhaseSucceeded:
		return render.Done.With("ready%s", used)
	case in.Phase == v1alpha1.PhaseFailed:
		return render.Failed.With("%s", in.Reason)
	case in.Rejected:
		return render.Failed.With("%s", v1alpha1.PlanItemRejected)
	case in.Phase == "":
		return render.Attention.With("%s", in.Reason)
	case in.Phase == v1alpha1.PhaseSyncing:
		return render.Running.With("%s", in.Phase)
	default:
		return render.Waiting.With("%s", strings.TrimSpace(string(in.Phase)))
	}
}
