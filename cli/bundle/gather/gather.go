// Package gather reads what a support bundle holds, with the caller's own rights. What cannot
// be read is listed, and ends nothing. No Secret is read.
package gather

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/bundle"
	"github.com/pelotech/ot-fleet/cli/connect"
	doctorgather "github.com/pelotech/ot-fleet/cli/doctor/gather"
)

const (
	// pageSize bounds one answer: a page of a report is up to 512 KiB.
	pageSize = 50
	// maxKindBytes bounds what is kept of one kind, as JSON.
	maxKindBytes  = bundle.MaxFileBytes
	maxErrorBytes = 300
	// requestTimeout bounds one read.
	requestTimeout = 30 * time.Second
)

// Options say what to gather.
type Options struct {
	// Clusters by name, of which plans, reports and doctor's findings are read, too.
	Clusters []string
	// Since bounds logs and events.
	Since          time.Duration
	HubNamespace   string
	AgentNamespace string
	CLIVersion     string
	Now            func() time.Time
}

// Gatherer fills one bundle. Add clusters, then Finish.
type Gatherer struct {
	options Options
	bundle  *bundle.Bundle
	redact  *bundle.Redactor
	// objects by the file that they go to: all are learned before the first is redacted.
	objects map[string][]map[string]any
	texts   map[string]string
}

// New returns a Gatherer of an empty bundle.
func New(o Options) *Gatherer {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return &Gatherer{options: o, bundle: bundle.New(), redact: bundle.NewRedactor(key), objects: map[string][]map[string]any{}, texts: map[string]string{}}
}

// kindList is a kind that is listed; in the namespaces that a cluster has for it.
type kindList struct {
	version schema.GroupVersion
	kind    string
	// namespaces are those to read; empty for all.
	namespaces []string
	labels     map[string]string
}

var own = v1alpha1.GroupVersion

// Hub adds what a hub has: kinds, events, logs, doctor's findings, and pages of the read API.
func (g *Gatherer) Hub(ctx context.Context, hub *connect.Cluster, flags *connect.Flags) {
	const folder = "hub"
	for _, kind := range []string{"MemberCluster", "FleetDiskImage", "PruneReport", "ImagePrune", "ClusterJoin"} {
		g.list(ctx, hub, folder, kindList{own, kind, nil, nil})
	}
	// Those of a whole fleet are hundreds of megabytes: only of clusters that were named.
	if mailboxes := g.mailboxes(); len(mailboxes) > 0 {
		for _, kind := range []string{"MemberLink", "ClusterPlan", "ClusterReport", "TransferGrant"} {
			g.list(ctx, hub, folder, kindList{own, kind, mailboxes, nil})
		}
	}
	g.common(ctx, hub, folder, g.options.HubNamespace, "ot-hub")
	g.readAPI(ctx, hub, flags)
	for _, cluster := range g.options.Clusters {
		snapshot, err := doctorgather.Hub(ctx, hub, g.doctorOptions(cluster))
		g.doctor(path.Join(folder, "doctor", cluster+".json"), snapshot, err)
	}
}

// Member adds what a member has.
func (g *Gatherer) Member(ctx context.Context, member *connect.Cluster, name string) {
	folder := path.Join("members", name)
	mailbox := []string{g.options.AgentNamespace}
	for _, k := range []kindList{
		{own, "VMDiskImage", nil, nil}, {own, "VirtualMachine", nil, nil}, {own, "SyncLedger", mailbox, nil},
		{own, "ClusterPlan", mailbox, nil}, {own, "ClusterReport", mailbox, nil}, {own, "TransferGrant", mailbox, nil},
		{schema.GroupVersion{Group: "cdi.kubevirt.io", Version: "v1beta1"}, "CDIConfig", nil, nil},
		{schema.GroupVersion{Group: "cdi.kubevirt.io", Version: "v1beta1"}, "StorageProfile", nil, nil},
		{schema.GroupVersion{Group: "storage.k8s.io", Version: "v1"}, "StorageClass", nil, nil},
	} {
		g.list(ctx, member, folder, k)
	}
	g.common(ctx, member, folder, g.options.AgentNamespace, "ot-agent")
	snapshot, err := doctorgather.Member(ctx, member, g.doctorOptions(name))
	g.doctor(path.Join(folder, "doctor.json"), snapshot, err)
}

// common adds what hub and agent both have.
func (g *Gatherer) common(ctx context.Context, c *connect.Cluster, folder, namespace, program string) {
	ours := map[string]string{"app.kubernetes.io/name": program}
	core := schema.GroupVersion{Version: "v1"}
	g.list(ctx, c, folder, kindList{core, "Pod", []string{namespace}, ours})
	g.list(ctx, c, folder, kindList{schema.GroupVersion{Group: "apps", Version: "v1"}, "Deployment", []string{namespace}, ours})
	g.list(ctx, c, folder, kindList{schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}, "Lease", []string{namespace}, nil})
	g.policy(ctx, c, folder)
	g.events(ctx, c, folder)
	g.logs(ctx, c, folder, namespace, ours)
	g.version(c, folder)
}

func (g *Gatherer) mailboxes() []string {
	var namespaces []string
	for _, cluster := range g.options.Clusters {
		namespaces = append(namespaces, v1alpha1.MemberNamespacePrefix+cluster)
	}
	return namespaces
}

// Unread lists what could not be read.
func (g *Gatherer) Unread(what string, err error) {
	g.bundle.Unread = append(g.bundle.Unread, bundle.Unread{What: what, Why: v1alpha1.SanitizeText(err.Error(), maxErrorBytes)})
}

// list reads a kind into a file of its own, page by page, as far as the file has room.
func (g *Gatherer) list(ctx context.Context, c *connect.Cluster, folder string, k kindList) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	file := path.Join(folder, strings.ToLower(k.kind)+"s.yaml")
	namespaces := k.namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	used := 0
	for _, namespace := range namespaces {
		options := []client.ListOption{client.InNamespace(namespace)}
		if k.labels != nil {
			options = append(options, client.MatchingLabels(k.labels))
		}
		err := g.pages(ctx, c, k.version.WithKind(k.kind+"List"), options, func(item map[string]any) error {
			text, err := json.Marshal(item)
			if err != nil {
				return err
			}
			if used += len(text); used > maxKindBytes {
				return fmt.Errorf("only the first %d objects: the others have no room; name clusters with --cluster", len(g.objects[file]))
			}
			g.objects[file] = append(g.objects[file], item)
			return nil
		})
		if err != nil && !meta.IsNoMatchError(err) {
			g.Unread(file, err)
		}
	}
}

// pages calls add for each object until it returns an error.
func (g *Gatherer) pages(ctx context.Context, c *connect.Cluster, kind schema.GroupVersionKind, options []client.ListOption, add func(map[string]any) error) error {
	for next := ""; ; {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := c.Client.List(ctx, list, append(slices.Clone(options), client.Limit(pageSize), client.Continue(next))...); err != nil {
			return err
		}
		for i := range list.Items {
			if err := add(list.Items[i].Object); err != nil {
				return err
			}
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// Finish redacts all that was read, and returns the bundle.
func (g *Gatherer) Finish() (*bundle.Bundle, error) {
	for _, file := range sortedFiles(g.objects) {
		for _, object := range g.objects[file] {
			g.redact.Learn(object)
		}
	}
	for _, file := range sortedFiles(g.objects) {
		slices.SortFunc(g.objects[file], func(a, b map[string]any) int { return strings.Compare(keyOf(a), keyOf(b)) })
		before := g.redact.Count()
		var documents []string
		for _, object := range g.objects[file] {
			text, err := yaml.Marshal(g.redact.Object(object))
			if err != nil {
				return nil, fmt.Errorf("writing %s: %w", file, err)
			}
			documents = append(documents, string(text))
		}
		g.bundle.Add(file, []byte(strings.Join(documents, "---\n")), g.redact.Count()-before)
	}
	for _, file := range sortedFiles(g.texts) {
		before := g.redact.Count()
		var lines []string
		for line := range strings.Lines(g.texts[file]) {
			lines = append(lines, g.redact.Line(strings.TrimSuffix(line, "\n")))
		}
		g.bundle.Add(file, []byte(strings.Join(lines, "\n")+"\n"), g.redact.Count()-before)
	}
	for i := range g.bundle.Unread {
		g.bundle.Unread[i].Why = g.redact.Text(g.bundle.Unread[i].Why)
	}
	g.bundle.Close()
	return g.bundle, nil
}

func keyOf(object map[string]any) string {
	u := &unstructured.Unstructured{Object: object}
	return u.GetNamespace() + "/" + u.GetName()
}

func sortedFiles[T any](files map[string]T) []string {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// readAPIPages are what the elected replica alone knows.
var readAPIPages = []string{"summary", "members", "history"}

func (g *Gatherer) readAPI(ctx context.Context, hub *connect.Cluster, flags *connect.Flags) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api, err := flags.OpenReadAPI(ctx, hub)
	if err != nil {
		g.Unread("hub/readapi", err)
		return
	}
	defer api.Close()
	for _, page := range readAPIPages {
		var answer map[string]any
		if err := api.Get(ctx, page, url.Values{}, &answer); err != nil {
			g.Unread("hub/readapi/"+page, err)
			if errors.Is(err, context.DeadlineExceeded) {
				return
			}
			continue
		}
		g.objects["hub/readapi/"+page+".yaml"] = []map[string]any{answer}
	}
}

// addJSON adds a document whose texts are all of this program.
func (g *Gatherer) addJSON(file string, value any) {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		g.Unread(file, err)
		return
	}
	g.texts[file] = string(text)
}
