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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/preload"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

type preloadFlags struct {
	selector, before   string
	yes, dryRun, force bool
}

func (e *environment) newPreloadCommand() *cobra.Command {
	flags := preloadFlags{}
	cmd := &cobra.Command{
		Use:   "preload IMAGE… (-l SELECTOR | --cluster NAME [--live]) [--before TIME]",
		Short: "Bring images to further clusters, before their users come",
		Long: `preload shows which clusters would download what, asks, and adds the clusters to the placement of
the FleetDiskImages: their waves and pace count. With --live the image is created in the one
cluster itself, beside the hub; the plan takes it over when it places the image there.

It says when each cluster is expected to have the image, and where there is no room: with --live the
cluster itself says that, else the image does where it waits for storage there. Where another image
waits for storage, room is unknown for those that are as large.

With --before, exit codes: 0 all are expected by then; 1 one is not, or has no room; 5 of one that is
not known, which --allow-unknown accepts. With -y nothing is written then; without it, preload asks.`,
		Example: "  kubectl ot preload ubuntu -l region=nordics --dry-run\n  kubectl ot preload ubuntu -l region=nordics --before 18:00 -y",
		Args:    cobra.MinimumNArgs(1),
	}
	useScopeFlags(cmd, objectFlags...)
	cmd.Flags().StringVarP(&flags.selector, "selector", "l", "", "clusters by their labels, as in region=nordics")
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "show the cost, and write nothing")
	cmd.Flags().BoolVar(&flags.force, "force-conflicts", false, "also where GitOps owns spec.placement")
	cmd.Flags().StringVar(&flags.before, "before", "", "when all clusters are to have it: 18:00, '2026-03-02 18:00' or RFC 3339")
	cmd.Flags().BoolVar(&e.allowUnknown, "allow-unknown", false, "with --before, go by the clusters of which it is known when they have it")
	addNeed(cmd, "before", "allow-unknown")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		hasSelector := cmd.Flags().Changed("selector")
		switch {
		case hasSelector == (e.cluster != ""):
			return errors.New("name the clusters: either -l, or --cluster")
		case e.live && hasSelector:
			return errors.New("--live is about one cluster: name it with --cluster")
		}
		if err := e.requireLive(); err != nil {
			return err
		}
		if err := e.requireMemberForNamespace(cmd); err != nil {
			return err
		}
		return e.preload(cmd.Context(), args, flags)
	}
	return cmd
}

func (e *environment) preload(ctx context.Context, names []string, flags preloadFlags) error {
	before := time.Time{}
	if flags.before != "" {
		var err error
		if before, err = preload.ParseBefore(flags.before, e.now()); err != nil {
			return err
		}
	}
	hub, err := e.ConnectHub()
	if err != nil {
		return err
	}
	images, targets, err := e.gatherPreload(ctx, hub, names, flags.selector)
	if err != nil {
		return err
	}
	fleet, unread, err := e.gatherForecast(ctx, hub, images, targets)
	if err != nil {
		return err
	}
	var items []preload.Image
	for _, img := range images {
		if owner := ownership.FindOwner(img, "spec.placement"); owner != nil && !flags.force && !e.live {
			return owner.Refusal("FleetDiskImage " + img.Name)
		}
		bytes, err := e.findDownloadBytes(ctx, hub, img)
		if err != nil {
			return err
		}
		item, err := preload.NewImage(img, targets, bytes)
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	if err := preload.Forecast(fleet, items, images, targets); err != nil {
		return err
	}
	p, question := preload.New(e.now(), items), "Go on?"
	p.DryRun, p.Unread = flags.dryRun, unread
	if flags.before != "" {
		p.JudgeTime(before)
	}
	code := p.ExitCode(e.allowUnknown)
	switch late := fmt.Sprintf("it is not known, or not so, that all clusters have it by %s", render.Clock(e.now(), before)); {
	case flags.dryRun || !p.HasDownloads():
		return e.show(p, code)
	case code != exit.Yes && flags.yes:
		if err := e.show(p, exit.Yes); err != nil {
			return err
		}
		return exit.Because(code, errors.New("nothing is written: "+late))
	case code != exit.Yes:
		question = "It is not known, or not so, that all clusters have it by " + render.Clock(e.now(), before) + ". Go on?"
	}
	if !flags.yes {
		if err := e.showBeforeAsking(p, flags.yes); err != nil {
			return err
		}
		context := hub.Context
		if e.live {
			context = cmp.Or(e.Member, e.cluster)
		}
		if err := e.askToGoOn(context, question); err != nil {
			return err
		}
	}
	var written []string
	for i, img := range images {
		if len(items[i].Download) == 0 {
			continue
		}
		if e.live {
			err = e.createInMember(ctx, img, targets[0].Member)
		} else {
			err = placeInClusters(ctx, hub, img, items[i].Download)
		}
		if err != nil {
			return noteWritten(err, written)
		}
		written = append(written, img.Name)
	}
	p.Written = true
	return e.show(p, exit.Yes)
}

// noteWritten says which images were written before an error.
func noteWritten(err error, written []string) error {
	if len(written) == 0 {
		return err
	}
	return fmt.Errorf("%w; written before: %s", err, strings.Join(written, ", "))
}

func (e *environment) gatherPreload(ctx context.Context, hub *connect.Cluster, names []string, selector string) (found []*v1alpha1.FleetDiskImage, targets []preload.Target, err error) {
	var images v1alpha1.FleetDiskImageList
	if err := hub.List(ctx, &images); err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		img, err := preload.FindImage(images.Items, name)
		if err != nil {
			return nil, nil, err
		}
		if !slices.Contains(found, img) {
			found = append(found, img)
		}
	}
	members, err := hub.ListMembers(ctx, selector)
	if err != nil {
		return nil, nil, err
	}
	for i := range members {
		m := &members[i]
		if e.cluster != "" && m.Name != e.cluster {
			continue
		}
		reported, err := e.listReported(ctx, hub, m.Name)
		if err != nil {
			return nil, nil, err
		}
		targets = append(targets, preload.Target{Member: m, Reported: reported, ObservedAt: e.now()})
	}
	if len(targets) == 0 {
		if e.cluster != "" {
			return nil, nil, hub.NoMember(e.cluster)
		}
		return nil, nil, fmt.Errorf("-l %s: selects no cluster of the fleet", selector)
	}
	return found, targets, nil
}

// maxAskedForSize is how many clusters are asked what a download has.
const maxAskedForSize = 5

// findDownloadBytes returns what a cluster that has the image has downloaded for it; 0 where none
// of the first ones says.
func (e *environment) findDownloadBytes(ctx context.Context, hub *connect.Cluster, img *v1alpha1.FleetDiskImage) (int64, error) {
	placement, err := rollout.NewPlacement(&img.Spec.Placement)
	if err != nil {
		return 0, err
	}
	var members v1alpha1.MemberClusterList
	if err := hub.List(ctx, &members); err != nil {
		return 0, err
	}
	asked := 0
	for i := range members.Items {
		if m := &members.Items[i]; asked < maxAskedForSize && placement.Selects(m) && rollout.WhyUnknown(m) == "" {
			asked++
			reported, err := e.listReported(ctx, hub, m.Name)
			if err != nil {
				return 0, err
			}
			r := rollout.FindReported(reported, img.Spec.TargetNamespace, img.ImageNameForVersion(img.Spec.Version))
			if r != nil && r.Phase == v1alpha1.PhaseSucceeded && r.DownloadBytes > 0 && r.Revision == img.Spec.Template.Revision() {
				return r.DownloadBytes, nil
			}
		}
	}
	return 0, nil
}

// placeInClusters adds clusters to what is stored, not to what was shown: others may have added some.
func placeInClusters(ctx context.Context, hub *connect.Cluster, shown *v1alpha1.FleetDiskImage, clusters []string) error {
	for tries := 0; ; tries++ {
		img, err := getFleetImage(ctx, hub, shown.Name)
		if err != nil {
			return err
		}
		if img.UID != shown.UID || img.Spec.Version != shown.Spec.Version || !img.Spec.Template.Equal(&shown.Spec.Template) ||
			!equality.Semantic.DeepEqual(img.Spec.Overrides, shown.Spec.Overrides) {
			return exit.Because(exit.No, fmt.Errorf("FleetDiskImage %s has changed since its cost was shown: review it again", shown.Name))
		}
		base := img.DeepCopy()
		if err := preload.Place(img, clusters); err != nil {
			return err
		}
		err = hub.Client.Patch(ctx, img, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), client.FieldOwner(ownership.FieldManager))
		if apierrors.IsConflict(err) && tries < maxTries {
			continue
		}
		return hub.Explain(err)
	}
}

func (e *environment) createInMember(ctx context.Context, img *v1alpha1.FleetDiskImage, in *v1alpha1.MemberCluster) error {
	member, err := e.connectToWrite(ctx, e.cluster)
	if err != nil {
		return err
	}
	image, err := preload.NewMemberImage(img, in)
	if err != nil {
		return err
	}
	err = member.Client.Create(ctx, image, client.FieldOwner(ownership.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		stored := &v1alpha1.VMDiskImage{}
		if err := member.Client.Get(ctx, client.ObjectKeyFromObject(image), stored); err != nil {
			return member.Explain(err)
		}
		return preload.CheckExisting(stored, image, e.cluster, e.scope())
	}
	return member.Explain(err)
}
