package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/why"
)

// answer is a View with an exit code.
type answer interface {
	render.View
	ExitCode() exit.Code
}

func (e *environment) newWhyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why",
		Short: "What holds up an image, a machine, a rollout or a cluster, and until when",
		Long: `why says what something waits for, what goes first, when it is expected, and what to do.

It asks the current cluster, with --cluster the hub for what that cluster has reported, and
with --cluster and --live the cluster itself. Exit codes: 0 it is ready; 1 it failed; 3 it
still waits; 4 a person has to act; 5 it is not known.`,
		Args: cobra.NoArgs,
	}
	for _, of := range []struct {
		use, short, example string
		scope               []string
		explain             func(ctx context.Context, name string) (answer, error)
	}{
		{"image NAME", "An image of one cluster: its place in the queue", "  kubectl ot why image ubuntu-2.1.0 -n vmdi-farm --cluster bergen", objectFlags, e.whyImage},
		{"machine NAME", "A machine, its image and its disks", "  kubectl ot why machine web-1 -n shop --cluster bergen --live", objectFlags, e.whyMachine},
		{"rollout NAME", "A FleetDiskImage and its waves", "  kubectl ot why rollout ubuntu -w", nil, e.whyRollout},
		{"cluster NAME", "A MemberCluster", "  kubectl ot why cluster bergen", nil, e.whyCluster},
	} {
		sub := useScopeFlags(&cobra.Command{Use: of.use, Short: of.short, Example: of.example, Args: cobra.ExactArgs(1)}, of.scope...)
		e.addWatchFlag(sub)
		timeout := new(time.Duration)
		addDuration(sub.Flags(), timeout, "timeout", noTimeout, "with -w, how long to watch; exit code 3 after it. Default: until it is ready or failed")
		addNeed(sub, "watch", "timeout")
		sub.RunE = e.run(func(ctx context.Context, args []string) error {
			return e.showOrWatchWithin(ctx, e.watching, *timeout, func(ctx context.Context) (watchState, error) {
				a, err := of.explain(ctx, args[0])
				if err != nil {
					return watchState{}, err
				}
				code := a.ExitCode()
				return watchState{view: a, code: code, end: code == exit.Yes || code == exit.No}, nil
			})
		})
		cmd.AddCommand(sub)
	}
	return cmd
}

// asksHub reports whether the hub is asked about a cluster, rather than the cluster itself.
func (e *environment) asksHub() bool { return e.cluster != "" && !e.live && e.Member == "" }

func (e *environment) whyImage(ctx context.Context, name string) (answer, error) {
	return e.whyImageIn(ctx, "", name)
}

// whyImageIn is about an image of a namespace, by default that of the flags.
func (e *environment) whyImageIn(ctx context.Context, namespace, name string) (answer, error) {
	if e.asksHub() {
		s, err := e.gatherReportedImage(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		if s.Missing && s.Unknown == "" {
			return nil, fmt.Errorf("cluster %s reports no image %s/%s: -n names its namespace", e.cluster, s.Namespace, name)
		}
		return e.explainImage(s), nil
	}
	member, m, err := e.gatherMember(ctx)
	if err != nil {
		return nil, err
	}
	namespace = cmp.Or(namespace, member.Namespace)
	if !slices.ContainsFunc(m.Images, func(img v1alpha1.VMDiskImage) bool { return img.Namespace == namespace && img.Name == name }) {
		if err := member.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &v1alpha1.VMDiskImage{}); err != nil {
			return nil, err
		}
	}
	return e.explainImage(m.OfImage(namespace, name)), nil
}

// explainImage says what to type where the image has failed: in the cluster, which has every image,
// whoever declared it; and where no agent has processed it.
func (e *environment) explainImage(s why.ImageSnapshot) *why.Image {
	w := why.NewImage(s)
	switch {
	case s.Missing, s.Plan != "":
	case s.Phase == "":
		w.Command = why.DoctorCommand(e.scope())
	case w.Verdict == why.Failed:
		words := append([]string{shellword.FormatCommand("kubectl ot image retry %s -n %s", w.Name, w.Namespace)}, e.scope()...)
		if !e.live {
			words = append(words, "--live")
		}
		w.Command = strings.Join(words, " ")
	}
	return w
}

// gatherReportedImage asks the hub's read API, else its kinds.
func (e *environment) gatherReportedImage(ctx context.Context, namespace, name string) (why.ImageSnapshot, error) {
	hub, err := e.ConnectHub()
	if err != nil {
		return why.ImageSnapshot{}, err
	}
	namespace = cmp.Or(namespace, hub.Namespace)
	var s why.ImageSnapshot
	unread, err := e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) error {
		w, err := api.Why(ctx, e.cluster, namespace, name)
		if err == nil {
			s = explain.FromReadAPI(e.now(), w)
		}
		return err
	})
	if err != nil {
		return s, err
	}
	if unread == "" {
		return s, nil
	}
	member, err := hub.GetMember(ctx, e.cluster)
	if err != nil {
		return s, err
	}
	reports := &v1alpha1.ClusterReportList{}
	if err := hub.List(ctx, reports, client.InNamespace(v1alpha1.MemberNamespacePrefix+e.cluster)); err != nil {
		return s, errors.Join(errors.New(unread), err)
	}
	if !e.toldUnread {
		e.printNote("%s", unread)
		e.toldUnread = true
	}
	return why.FromKinds(e.now(), namespace, name, member, reports.Items), nil
}

// gatherMember reads a member's own kinds. Those that may not be read are left out: without
// the ledger and the report, there is no queue and no estimate.
func (e *environment) gatherMember(ctx context.Context) (*connect.Cluster, why.Member, error) {
	member, err := e.ConnectMember(ctx, e.cluster)
	if err != nil {
		return nil, why.Member{}, err
	}
	m := why.Member{Now: e.now(), Cluster: e.cluster}
	if m.Cluster == "" {
		m.Cluster = member.Context
	}
	o := &optional{cluster: member}
	if m.Images, err = e.listImages(ctx, o); err != nil {
		return nil, m, err
	}
	ledgers := &v1alpha1.SyncLedgerList{}
	if err := o.list(ctx, ledgers); err != nil {
		return nil, m, err
	}
	if len(ledgers.Items) > 0 {
		m.Ledger = &ledgers.Items[0]
		report := &v1alpha1.ClusterReport{}
		if found, err := o.get(ctx, client.ObjectKey{Namespace: m.Ledger.Namespace, Name: v1alpha1.ActivityName}, report); err != nil {
			return nil, m, err
		} else if found {
			m.Reported = report.Activity
		}
	}
	if text := o.explain(); text != "" && !e.toldUnread {
		e.printNote("%s", text)
		e.toldUnread = true
	}
	return member, m, nil
}

// listImages reads the images of all namespaces of a member, or of one where the caller may read no others.
func (e *environment) listImages(ctx context.Context, o *optional) ([]v1alpha1.VMDiskImage, error) {
	images := &v1alpha1.VMDiskImageList{}
	if err := o.list(ctx, images); err != nil {
		return nil, err
	}
	switch {
	case len(o.unread) > 0:
		if err := o.cluster.List(ctx, images, client.InNamespace(o.cluster.Namespace)); err != nil {
			return nil, err
		}
	case e.fallbackNamespace != "":
		e.printNote("--namespace %s has no effect: you may list the images of all namespaces here, which are shown.", e.fallbackNamespace)
		e.fallbackNamespace = "" // a watch does not say it again
	}
	return images.Items, nil
}

func (e *environment) whyMachine(ctx context.Context, name string) (answer, error) {
	if e.asksHub() {
		return nil, fmt.Errorf("the hub does not know machines: add --live, or use a context of cluster %s", e.cluster)
	}
	member, m, err := e.gatherMember(ctx)
	if err != nil {
		return nil, err
	}
	s := why.MachineSnapshot{Now: m.Now, Cluster: m.Cluster, Scope: e.scope(), Machine: &v1alpha1.VirtualMachine{}}
	if err := member.Get(ctx, client.ObjectKey{Namespace: member.Namespace, Name: name}, s.Machine); err != nil {
		return nil, err
	}
	ref := s.Machine.ImageNamespacedName()
	if image := m.OfImage(ref.Namespace, ref.Name); !image.Missing {
		s.Image = &image
	}
	return why.NewMachine(s), nil
}

func (e *environment) whyRollout(ctx context.Context, name string) (answer, error) {
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, err
	}
	s := why.RolloutSnapshot{Now: e.now(), Image: &v1alpha1.FleetDiskImage{}}
	if err := hub.Get(ctx, client.ObjectKey{Name: name}, s.Image); err != nil {
		return nil, err
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Group: v1alpha1.GroupVersion.Group, Resource: "fleetdiskimages", Verb: why.VerbToGoOn(s.Image), Name: name,
	}}}
	if err := hub.Client.Create(ctx, review); err == nil { // else the screen does not say
		s.MayApprove = &review.Status.Allowed
	}
	return why.NewRollout(s), nil
}

func (e *environment) whyCluster(ctx context.Context, name string) (answer, error) {
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, err
	}
	member, err := hub.GetMember(ctx, name)
	if err != nil {
		return nil, err
	}
	return why.NewCluster(e.now(), member), nil
}
