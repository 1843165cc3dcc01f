// Package versions says which versions of client, hub and agents there are, and whether they work
// together.
package versions

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// maxMinorSkew is how many minor versions apart client and hub may be, as hub and agents.
const maxMinorSkew = 1

// maxNamed is how many clusters of a version the screen names; the JSON has all.
const maxNamed = 5

// Snapshot is what was found out.
type Snapshot struct {
	Client string
	// Hub is the context of the hub; empty where it was not asked.
	Hub string
	// Leases of the hub's namespace; LeasesUnread says why they could not be read.
	Leases       []coordinationv1.Lease
	LeasesUnread string
	Members      []v1alpha1.MemberCluster
}

// Versions is the answer.
type Versions struct {
	render.Envelope
	Client Client `json:"client"`
	Hub    *Hub   `json:"hub,omitempty"`
	// Agents by their version, the newest first.
	Agents []Agents `json:"agents,omitempty"`
}

// Client is this program.
type Client struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Hub is the hub of a context.
type Hub struct {
	Context string `json:"context"`
	// Version of the elected replica, else of any; empty where it is not known.
	Version string `json:"version,omitempty"`
	// Replicas of other versions, while the hub is upgraded.
	Replicas []Replica `json:"replicas,omitempty"`
	// Problem says why the version is not known, or that client and hub are too far apart.
	Problem string `json:"problem,omitempty"`
}

// Replica of the hub.
type Replica struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Agents of one version.
type Agents struct {
	Version string `json:"version"`
	// Count of the Clusters.
	Count    int      `json:"count"`
	Clusters []string `json:"clusters"`
	// Unsupported clusters say by condition VersionSupported that hub and agent do not work
	// together; Message is the first one's.
	Unsupported []string `json:"unsupported,omitempty"`
	Message     string   `json:"message,omitempty"`
}

// New decides what there is to say.
func New(s Snapshot) *Versions {
	v := &Versions{
		Envelope: render.NewEnvelope("Versions"),
		Client:   Client{Version: s.Client, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH},
	}
	if s.Hub == "" {
		return v
	}
	v.Hub = newHub(s)
	byVersion := map[string]*Agents{}
	for i := range s.Members {
		m := &s.Members[i]
		reported := v1alpha1.SanitizeText(m.Status.AgentVersion, 128)
		group := byVersion[reported]
		if group == nil {
			group = &Agents{Version: reported}
			byVersion[reported] = group
		}
		group.Count++
		group.Clusters = append(group.Clusters, m.Name)
		if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionVersionSupported); c != nil && c.Status == metav1.ConditionFalse {
			group.Unsupported = append(group.Unsupported, m.Name)
			group.Message = cmp.Or(group.Message, v1alpha1.SanitizeText(c.Message, 1024))
		}
	}
	for _, group := range byVersion {
		slices.Sort(group.Clusters)
		slices.Sort(group.Unsupported)
		v.Agents = append(v.Agents, *group)
	}
	slices.SortFunc(v.Agents, func(a, b Agents) int { return -compare(a.Version, b.Version) })
	return v
}

func newHub(s Snapshot) *Hub {
	hub := &Hub{Context: s.Hub, Problem: s.LeasesUnread}
	replicas, elected := readapi.Replicas(s.Leases)
	for _, r := range replicas {
		if r.Version != "" && (hub.Version == "" || r.Process == elected) {
			hub.Version = v1alpha1.SanitizeText(r.Version, 128)
		}
	}
	for _, r := range replicas {
		if r.Version != "" && v1alpha1.SanitizeText(r.Version, 128) != hub.Version {
			hub.Replicas = append(hub.Replicas, Replica{r.Replica, v1alpha1.SanitizeText(r.Version, 128)})
		}
	}
	switch {
	case hub.Problem != "":
	case hub.Version == "":
		hub.Problem = "no replica of it says its version: it is older than this plugin, or does not run"
	case !together(s.Client, hub.Version):
		hub.Problem = fmt.Sprintf("client %s and hub %s are more than one minor version apart: install the plugin of the hub's version", s.Client, hub.Version)
	}
	return hub
}

// together reports whether two versions are known to work together. What is no release, as one
// that was built from a commit, may.
func together(a, b string) bool {
	first, err := version.ParseGeneric(a)
	second, err2 := version.ParseGeneric(b)
	if err != nil || err2 != nil {
		return true
	}
	low, high := min(first.Minor(), second.Minor()), max(first.Minor(), second.Minor())
	return first.Major() == second.Major() && high-low <= maxMinorSkew
}

// compare orders releases by their numbers, before all that are none.
func compare(a, b string) int {
	first, err := version.ParseGeneric(a)
	second, err2 := version.ParseGeneric(b)
	switch {
	case err == nil && err2 == nil && first.LessThan(second):
		return -1
	case err == nil && err2 == nil && second.LessThan(first):
		return 1
	case (err == nil) != (err2 == nil):
		if err == nil {
			return 1
		}
		return -1
	}
	return cmp.Compare(a, b)
}

// ExitCode is No where versions are known not to work together, and Unknown where the hub's is not
// known.
func (v *Versions) ExitCode() exit.Code {
	if v.Hub != nil && v.Hub.Version != "" && v.Hub.Problem != "" {
		return exit.No
	}
	for _, group := range v.Agents {
		if len(group.Unsupported) > 0 {
			return exit.No
		}
	}
	if v.Hub != nil && v.Hub.Version == "" {
		return exit.Unknown
	}
	return exit.Yes
}

// Draw draws the screen.
func (v *Versions) Draw(p *render.Page) {
	p.Line(render.Text("client  %s  (%s, %s)", v.Client.Version, v.Client.Go, v.Client.Platform))
	if v.Hub == nil {
		return
	}
	p.Line(render.Text("hub     %s  (context %s)", known(v.Hub.Version), v.Hub.Context))
	for _, r := range v.Hub.Replicas {
		p.Line(render.Text("        %s in replica %s: an upgrade is under way", r.Version, r.Name))
	}
	if v.Hub.Problem != "" {
		p.Line(append(render.Line{render.Text("        ")}, render.Attention.With("%s", v.Hub.Problem)...)...)
	}
	for i, group := range v.Agents {
		label := "agents  "
		if i > 0 {
			label = "        "
		}
		p.Line(render.Text("%s%s  %s: %s", label, known(group.Version), render.Count(group.Count, "cluster"), names(group.Clusters)))
		if len(group.Unsupported) > 0 {
			p.Line(append(render.Line{render.Text("        ")}, render.Failed.With("%s", names(group.Unsupported)+": "+group.Message)...)...)
		}
	}
}

func known(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

func names(all []string) string {
	text := ""
	for i, name := range all {
		if i == maxNamed {
			return text + " …"
		}
		if i > 0 {
			text += " "
		}
		text += name
	}
	return text
}
