package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/tree"
)

func (e *environment) newTreeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tree", Short: "Show an image, a machine or a rollout with what belongs to it", Args: cobra.NoArgs}
	const exitCodes = "0 it is done; 1 it failed; 3 it goes on; 4 it waits for a person; 5 it is unknown."
	depth, all := 0, false
	cmd.PersistentFlags().IntVar(&depth, "depth", 0, "levels to show; 0 shows all")
	cmd.PersistentFlags().BoolVar(&all, "all", false, "each by itself, also those that are alike")
	for _, of := range []struct {
		use, short, example string
		// codesOf is the command whose exit codes these are.
		codesOf string
		scope   []string
		// gather returns the root, and what the tree cannot show from here.
		gather func(ctx context.Context, name string) (*tree.Node, string, error)
	}{
		{"rollout NAME", "A FleetDiskImage, its waves and their clusters", "  kubectl ot tree rollout ubuntu", "rollout status", nil, func(ctx context.Context, name string) (*tree.Node, string, error) {
			hub, err := e.ConnectHub()
			if err != nil {
				return nil, "", err
			}
			s, unread, err := e.gatherRolloutTree(ctx, hub, name)
			if err != nil {
				return nil, "", err
			}
			s.All = all
			return tree.NewRollout(s), unread, nil
		}},
		{"image NAME", "A VMDiskImage of a member, its storage, and what holds it", "  kubectl ot tree image ubuntu-2.1.0 -n vmdi-farm --cluster bergen", "why", objectFlags, func(ctx context.Context, name string) (*tree.Node, string, error) {
			member, err := e.ConnectMember(ctx, e.cluster)
			if err != nil {
				return nil, "", err
			}
			s, unread, err := e.gatherImageTree(ctx, member, name)
			if err != nil {
				return nil, "", err
			}
			return tree.NewImage(s), unread, nil
		}},
		{"machine NAME", "A VirtualMachine of a member, its image and its disks", "  kubectl ot tree machine web-1 -n shop --cluster bergen", "why", objectFlags, func(ctx context.Context, name string) (*tree.Node, string, error) {
			member, err := e.ConnectMember(ctx, e.cluster)
			if err != nil {
				return nil, "", err
			}
			s, unread, err := e.gatherMachineTree(ctx, member, name)
			if err != nil {
				return nil, "", err
			}
			return tree.NewMachine(s), unread, nil
		}},
	} {
		sub := useScopeFlags(&cobra.Command{Use: of.use, Short: of.short, Long: of.short + ".\n\nExit codes are those of " + of.codesOf + ": " + exitCodes, Example: of.example, Args: cobra.ExactArgs(1)}, of.scope...)
		e.addWatchFlag(sub)
		sub.RunE = e.run(func(ctx context.Context, args []string) error {
			return e.showOrWatch(ctx, e.watching, func(ctx context.Context) (watchState, error) {
				root, unread, err := of.gather(ctx, args[0])
				if err != nil {
					return watchState{}, err
				}
				t := tree.New(e.now(), root, unread, depth)
				return watchState{view: t, code: t.ExitCode()}, nil
			})
		})
		cmd.AddCommand(sub)
	}
	return cmd
}

func (e *environment) gatherRolloutTree(ctx context.Context, hub *connect.Cluster, name string) (tree.RolloutSnapshot, string, error) {
	s := tree.RolloutSnapshot{Now: e.now(), Image: &v1alpha1.FleetDiskImage{}}
	if err := hub.Get(ctx, client.ObjectKey{Name: name}, s.Image); err != nil {
		return s, "", err
	}
	unread, err := e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) error {
		s.Clusters = []tree.RolloutCluster{}
		clusters := readapi.Each(func(page readapi.Paging) ([]readapi.RolloutCluster, string, error) {
			page.Limit = 1000
			list, err := api.RolloutClusters(ctx, name, "", page)
			if err != nil {
				return nil, "", err
			}
			return list.Clusters, list.Next, nil
		})
		for c, err := range clusters {
			if err != nil {
				s.Clusters = nil
				return err
			}
			s.Clusters = append(s.Clusters, tree.RolloutCluster{Cluster: c.Cluster, Wave: c.Wave, State: c.State, Reason: c.Reason, Message: c.Message})
		}
		return nil
	})
	if errors.Is(err, readapi.ErrNotFound) {
		unread, err = notSeenYet, nil
	}
	return s, unread, err
}

// optional reads what a tree can do without. What may not be read is told below the tree.
type optional struct {
	cluster *connect.Cluster
	unread  []string
}

// list lists objects by a label; kinds that the cluster does not have are empty.
func (o *optional) list(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return o.accept(o.cluster.List(ctx, list, options...))
}

// get reads an object and reports whether it is there and may be read.
func (o *optional) get(ctx context.Context, key client.ObjectKey, into client.Object) (bool, error) {
	err := o.cluster.Client.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, o.accept(err)
	}
	return true, nil
}

func (o *optional) accept(err error) error {
	var status apierrors.APIStatus
	switch {
	case err == nil, meta.IsNoMatchError(err):
		return nil
	case apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil:
		o.unread = append(o.unread, status.Status().Details.Kind)
		return nil
	default:
		return o.cluster.Explain(err)
	}
}

// explain says what is not shown.
func (o *optional) explain() string {
	if len(o.unread) == 0 {
		return ""
	}
	return fmt.Sprintf("Not shown, since you may not read them here: %s.", strings.Join(o.unread, ", "))
}

func (e *environment) gatherImageTree(ctx context.Context, member *connect.Cluster, name string) (tree.ImageSnapshot, string, error) {
	s := tree.ImageSnapshot{Now: e.now(), Image: &v1alpha1.VMDiskImage{}}
	if err := member.Get(ctx, client.ObjectKey{Namespace: member.Namespace, Name: name}, s.Image); err != nil {
		return s, "", err
	}
	var (
		volumes   cdiv1.DataVolumeList
		claims    corev1.PersistentVolumeClaimList
		snapshots snapshotv1.VolumeSnapshotList
		pods      corev1.PodList
	)
	o := &optional{cluster: member}
	labeled := client.MatchingLabels{v1alpha1.LabelImageUID: string(s.Image.UID)}
	for _, list := range []client.ObjectList{&volumes, &claims, &snapshots, &pods} {
		if err := o.list(ctx, list, client.InNamespace(s.Image.Namespace), labeled); err != nil {
			return s, "", err
		}
	}
	s.DataVolumes, s.Claims, s.Snapshots, s.Pods = volumes.Items, claims.Items, snapshots.Items, pods.Items
	for _, holder := range s.Image.Status.References.Holders {
		namespace, name, _ := strings.Cut(holder, "/")
		var machine v1alpha1.VirtualMachine
		found, err := o.get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &machine)
		if err != nil {
			return s, "", err
		}
		if found {
			s.Machines = append(s.Machines, machine)
		}
	}
	return s, o.explain(), nil
}

func (e *environment) gatherMachineTree(ctx context.Context, member *connect.Cluster, name string) (tree.MachineSnapshot, string, error) {
	s := tree.MachineSnapshot{Now: e.now(), Machine: &v1alpha1.VirtualMachine{}}
	key := client.ObjectKey{Namespace: member.Namespace, Name: name}
	if err := member.Get(ctx, key, s.Machine); err != nil {
		return s, "", err
	}
	o := &optional{cluster: member}
	var (
		image     v1alpha1.VMDiskImage
		machine   kubevirtv1.VirtualMachine
		instance  kubevirtv1.VirtualMachineInstance
		volumes   cdiv1.DataVolumeList
		claims    corev1.PersistentVolumeClaimList
		pods      corev1.PodList
		ofMachine = client.MatchingLabels{v1alpha1.LabelMachineUID: string(s.Machine.UID)}
	)
	found, err := o.get(ctx, s.Machine.ImageNamespacedName(), &image)
	if err != nil {
		return s, "", err
	}
	if found {
		s.Image = &image
	}
	if found, err = o.get(ctx, key, &machine); err != nil {
		return s, "", err
	}
	if found {
		s.KubeVirt = &machine
	}
	if found, err = o.get(ctx, key, &instance); err != nil {
		return s, "", err
	}
	if found {
		s.Instance = &instance
		if err := o.list(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingLabels{kubevirtv1.CreatedByLabel: string(instance.UID)}); err != nil {
			return s, "", err
		}
	}
	for _, list := range []client.ObjectList{&volumes, &claims} {
		if err := o.list(ctx, list, client.InNamespace(key.Namespace), ofMachine); err != nil {
			return s, "", err
		}
	}
	s.DataVolumes, s.Claims, s.Pods = volumes.Items, claims.Items, pods.Items
	return s, o.explain(), nil
}
