package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/list"
	"github.com/pelotech/ot-fleet/cli/render"
)

// defaultListLimit is how many rows are shown unless more are asked for.
const defaultListLimit = 200

// getFlags are those of all lists.
type getFlags struct {
	list.Query
	selector      string
	allNamespaces bool
}

func (e *environment) newGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Lists of clusters, images, machines and rollouts",
		Long: `get lists what the hub knows: clusters, rollouts, and images as they are in the clusters'
reports. With --live it asks a member itself, which alone knows its machines.`,
		Args: cobra.NoArgs,
	}
	for _, verb := range []struct {
		use, short, example string
		scope               []string
		get                 func(context.Context, *getFlags) (render.View, []string, error)
	}{
		{"clusters [NAME...]", "Clusters of the fleet", "  kubectl ot get clusters -l region=nordics --sort-by failed", nil, e.getClusters},
		{"rollouts [NAME...]", "FleetDiskImages", "  kubectl ot get rollouts --failing", nil, e.getRollouts},
		{"images [NAME...]", "Images: of the fleet, of one cluster, or all that failed", "  kubectl ot get images --cluster bergen --failing", objectFlags, e.getImages},
		{"machines [NAME...]", "VirtualMachines of a member", "  kubectl ot get machines --cluster bergen --live -A", objectFlags, e.getMachines},
	} {
		f := &getFlags{}
		one := useScopeFlags(&cobra.Command{Use: verb.use, Short: verb.short, Example: verb.example}, verb.scope...)
		flags := one.Flags()
		flags.BoolVar(&f.Failing, "failing", false, "those alone that failed or are not ready")
		flags.BoolVar(&f.Unknown, "unknown", false, "those alone of which nothing current is known")
		flags.IntVar(&f.Limit, "limit", defaultListLimit, "rows to show; 0 shows all")
		flags.StringVar(&f.SortBy, "sort-by", "", "name, or another key of this list, as in failed")
		e.addWatchFlag(one)
		flags.StringVarP(&f.selector, "selector", "l", "", "by labels, as in region=nordics; the server selects")
		if len(verb.scope) > 0 {
			flags.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "of all namespaces of the member that is asked")
		}
		one.RunE = e.run(func(ctx context.Context, args []string) error {
			f.Names = args
			return e.showOrWatch(ctx, e.watching, func(ctx context.Context) (watchState, error) {
				view, missing, err := verb.get(ctx, f)
				state := watchState{view: view}
				if len(missing) > 0 {
					state.lack = fmt.Errorf("not found: %s", strings.Join(missing, ", "))
				}
				return state, err
			})
		})
		cmd.AddCommand(one)
		if one.Name() == "images" {
			addNeed(one, "live", "all-namespaces") // reports are of all namespaces
		}
	}
	return cmd
}

func (e *environment) getClusters(ctx context.Context, f *getFlags) (render.View, []string, error) {
	rows, err := list.NewClusters(e.now(), f.Query)
	if err != nil {
		return nil, nil, err
	}
	err = e.eachMember(ctx, f.selector, func(m *v1alpha1.MemberCluster) { rows.Add(list.NewCluster(m)) })
	rows.Finish()
	return rows, rows.Missing(), err
}

// eachMember calls do for the MemberClusters that a selector selects.
func (e *environment) eachMember(ctx context.Context, selector string, do func(*v1alpha1.MemberCluster)) error {
	hub, err := e.ConnectHub()
	if err != nil {
		return err
	}
	return hub.EachMember(ctx, selector, do)
}

func (e *environment) getRollouts(ctx context.Context, f *getFlags) (render.View, []string, error) {
	rows, err := list.NewRollouts(e.now(), f.Query)
	if err != nil {
		return nil, nil, err
	}
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, nil, err
	}
	var images v1alpha1.FleetDiskImageList
	err = hub.EachSelected(ctx, f.selector, "rollout", &images, func() error {
		for i := range images.Items {
			rows.Add(list.NewRollout(&images.Items[i]))
		}
		return nil
	})
	rows.Finish()
	return rows, rows.Missing(), err
}

func (e *environment) getImages(ctx context.Context, f *getFlags) (render.View, []string, error) {
	if err := e.requireLive(); err != nil {
		return nil, nil, err
	}
	switch {
	case e.live:
		return e.getLiveImages(ctx, f)
	case e.cluster == "" && f.Failing:
		return e.getFailedImages(ctx, f)
	case f.selector != "":
		return nil, nil, errors.New("-l: reports of images have no labels; it needs --live, or --failing to select clusters")
	case e.cluster == "":
		return e.getSources(ctx, f)
	default:
		return e.getReportedImages(ctx, f)
	}
}

// getFailedImages lists the images that failed, the first of each cluster.
func (e *environment) getFailedImages(ctx context.Context, f *getFlags) (render.View, []string, error) {
	failed, err := list.NewFailedImages(e.now(), f.Query, e.namespace())
	if err != nil {
		return nil, nil, err
	}
	err = e.eachMember(ctx, f.selector, failed.AddMember)
	return failed.Finish(), nil, err // one that is not among them may be well
}

// getSources lists the distinct images of the fleet.
func (e *environment) getSources(ctx context.Context, f *getFlags) (render.View, []string, error) {
	rows, err := list.NewSources(e.now(), f.Query)
	if err != nil {
		return nil, nil, err
	}
	empty := *rows
	err = e.eachEntry(ctx, func(api *connect.ReadAPI) error {
		*rows = empty
		entries := readapi.Each(func(page readapi.Paging) ([]readapi.Image, string, error) {
			answer, err := api.Images(ctx, page)
			if err != nil {
				return nil, "", err
			}
			return answer.Images, answer.Next, nil
		})
		for image, err := range entries {
			if err != nil {
				return err
			}
			rows.Add(list.NewSource(&image))
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	rows.Finish()
	if namespace := e.namespace(); namespace != "" {
		rows.Unread = fmt.Sprintf("Of all namespaces, not of %s alone: --cluster NAME lists the images of one cluster by namespace", namespace)
	}
	return rows, rows.Missing(), nil
}

// getReportedImages lists the images of one cluster, as it reported them.
func (e *environment) getReportedImages(ctx context.Context, f *getFlags) (render.View, []string, error) {
	rows, err := list.NewImages(e.now(), f.Query)
	if err != nil {
		return nil, nil, err
	}
	empty := *rows
	err = e.eachEntry(ctx, func(api *connect.ReadAPI) error {
		*rows = empty
		for page := ""; ; {
			answer, err := api.MemberImages(ctx, e.cluster, page)
			if err != nil {
				return err
			}
			for i := range answer.Images {
				if image := &answer.Images[i]; e.namespace() == "" || e.namespace() == image.Namespace {
					rows.Add(list.NewReportedImage(e.cluster, image, answer.Unknown))
				}
			}
			if answer.Unknown != "" {
				rows.Unread = fmt.Sprintf("Cluster %s may have changed since its report: %s", e.cluster, answer.Unknown)
			}
			if page = answer.Next; page == "" {
				return nil
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	rows.Finish()
	return rows, rows.Missing(), nil
}

// namespace returns -n; empty where it is not given.
func (e *environment) namespace() string {
	if e.Flags == nil || e.Namespace == nil {
		return ""
	}
	return *e.Namespace
}

// eachEntry reads lists of the read API, which nothing stands in for. read may be called twice, and
// begins anew each time.
func (e *environment) eachEntry(ctx context.Context, read func(*connect.ReadAPI) error) error {
	hub, err := e.ConnectHub()
	if err != nil {
		return err
	}
	if err := e.withReadAPI(ctx, hub, read); err != nil {
		return fmt.Errorf("images of all clusters are known to the read API alone; --live asks one member: %w", err)
	}
	return nil
}

func (e *environment) getLiveImages(ctx context.Context, f *getFlags) (render.View, []string, error) {
	rows, err := list.NewImages(e.now(), f.Query)
	if err != nil {
		return nil, nil, err
	}
	var images v1alpha1.VMDiskImageList
	err = e.eachOfMember(ctx, f, "image", &images, func() error {
		for i := range images.Items {
			rows.Add(list.NewLiveImage(e.cluster, &images.Items[i]))
		}
		return nil
	})
	rows.Finish()
	return rows, rows.Missing(), err
}

func (e *environment) getMachines(ctx context.Context, f *getFlags) (render.View, []string, error) {
	if e.cluster != "" && !e.live {
		return nil, nil, fmt.Errorf("the hub knows no machines: ask the member, with --cluster %s --live", e.cluster)
	}
	rows, err := list.NewMachines(e.now(), f.Query)
	if err != nil {
		return nil, nil, err
	}
	var machines v1alpha1.VirtualMachineList
	err = e.eachOfMember(ctx, f, "machine", &machines, func() error {
		for i := range machines.Items {
			rows.Add(list.NewMachine(e.cluster, &machines.Items[i]))
		}
		return nil
	})
	rows.Finish()
	return rows, rows.Missing(), err
}

// eachOfMember reads objects of a member, page by page.
func (e *environment) eachOfMember(ctx context.Context, f *getFlags, noun string, page client.ObjectList, do func() error) error {
	member, err := e.ConnectMember(ctx, e.cluster)
	if err != nil {
		return err
	}
	var options []client.ListOption
	if !f.allNamespaces {
		options = append(options, client.InNamespace(member.Namespace))
	}
	return member.EachSelected(ctx, f.selector, noun, page, do, options...)
}
