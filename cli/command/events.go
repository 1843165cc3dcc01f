package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/events"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/join"
	"github.com/pelotech/ot-fleet/cli/render"
)

// defaultEventLimit is how many events are shown without --limit.
const defaultEventLimit = 100

// eventReader reads events, and says what could not be read. eventGatherer finds what they are of.
type (
	eventReader   func(context.Context) ([]events.Source, []string, error)
	eventGatherer func(ctx context.Context, name string) (eventReader, error)
)

func (e *environment) newEventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events [image|cluster] NAME",
		Short: "What hub and members have recorded of an image or a cluster",
		Long: `events merges the events of hub and member by their time. With -w it goes on, one line for
each, until --timeout.`,
		Example: "  kubectl ot events ubuntu -w",
		Args:    cobra.ExactArgs(1),
	}
	limit, timeout := 0, time.Duration(0)
	flags := cmd.PersistentFlags()
	flags.IntVar(&limit, "limit", defaultEventLimit, "how many, the newest; 0 shows all")
	flags.BoolVarP(&e.watching, "watch", "w", false, "go on, one line for each")
	addDuration(flags, &timeout, "timeout", 6*time.Hour, "with -w, how long to go on; exit code 3 after it")
	addNeed(cmd, "watch", "timeout")
	runWith := func(gather eventGatherer) func(*cobra.Command, []string) error {
		return e.run(func(ctx context.Context, args []string) error {
			var read eventReader
			return e.showEvents(ctx, args[0], limit, timeout, func(ctx context.Context) (_ []events.Source, _ []string, err error) {
				if read == nil {
					if read, err = gather(ctx, args[0]); err != nil {
						return nil, nil, err
					}
				}
				return read(ctx)
			})
		})
	}
	cmd.RunE = runWith(e.gatherEventsByName)
	cmd.ValidArgsFunction = e.completeKind(clusterKind, fleetImageKind)
	useScopeFlags(cmd, objectFlags...)
	add := func(use, short, example string, gather eventGatherer, scope ...string) {
		cmd.AddCommand(useScopeFlags(&cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ExactArgs(1), RunE: runWith(gather)}, scope...))
	}
	add("image NAME", "Of a FleetDiskImage on the hub, and of its images in --cluster; of a VMDiskImage in a member's context", "  kubectl ot events image ubuntu --cluster bergen", e.gatherImageEvents, objectFlags...)
	add("cluster NAME", "Of a MemberCluster on the hub, and of its agent with --live", "  kubectl ot events cluster bergen --live", e.gatherClusterEvents, "live", "member-context")
	return cmd
}

// showEvents shows events once, or as a stream of lines until the timeout.
func (e *environment) showEvents(ctx context.Context, of string, limit int, timeout time.Duration, read eventReader) error {
	look, lookTime := ctx, time.Duration(0)
	if e.watching {
		var cancel func()
		ctx, look, lookTime, cancel = boundWait(ctx, timeout)
		defer cancel()
	}
	once := func(ctx context.Context) (*events.Events, error) {
		sources, unread, err := read(ctx)
		if err != nil {
			return nil, err
		}
		return events.New(e.now(), of, limit, unread, sources...), nil
	}
	poll := func(ctx context.Context) (*events.Events, error) { return within(ctx, once) }
	v, err := poll(look)
	if err != nil {
		return notWithin(look, lookTime, err)
	}
	if !e.watching {
		return e.show(v, v.ExitCode())
	}
	stream, printed, note, notedUnread := &events.Stream{}, 0, retryNote{e: e}, []string(nil)
	for {
		if err == nil {
			for _, unread := range v.Unread {
				if !slices.Contains(notedUnread, unread) {
					e.printNote("%s", unread)
				}
			}
			if len(notedUnread) > 0 && len(v.Unread) == 0 {
				e.printNote("all events are read again")
			}
			news := stream.Next(v)
			if err := e.printEvents(news, printed == 0); err != nil {
				return err
			}
			printed += len(news)
			note.reset()
			notedUnread = v.Unread
		} else {
			note.print(ctx, err)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return exit.With(exit.NotYet)
			}
			return ctx.Err()
		case <-time.After(watchInterval):
		}
		v, err = poll(ctx)
	}
}

// printEvents prints events as lines, or each as one line of JSON where -o asks for data; -o yaml has
// a document for each. areFirst: nothing was printed before.
func (e *environment) printEvents(news []events.Event, areFirst bool) error {
	options := e.options()
	options.Width = 0 // a line stays one
	for i, event := range news {
		data, err := json.Marshal(event)
		if err != nil {
			return err
		}
		data = options.CompleteJSON(data)
		var text []byte
		if separator := e.format.Separator(); separator != "" {
			document, err := render.MarshalYAML(json.RawMessage(data))
			if err != nil {
				return err
			}
			if areFirst && i == 0 {
				separator = ""
			}
			text = slices.Concat([]byte(separator), document)
		} else if e.format.Screen() {
			page := &render.Page{}
			page.Line(event.Line(e.now())...)
			text = []byte(render.Print(page, options))
		} else {
			text = slices.Concat(render.EscapeControls(data), []byte{'\n'})
		}
		if _, err := e.Out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// gatherEventsByName finds out whether a name is that of an image or of a cluster.
func (e *environment) gatherEventsByName(ctx context.Context, name string) (eventReader, error) {
	image, hub, err := e.findFleetImage(ctx, name)
	if err != nil {
		return nil, err
	}
	err = hub.Client.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.MemberCluster{})
	isCluster := err == nil
	switch {
	case err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return nil, hub.Explain(err)
	case isCluster && image != nil:
		return nil, fmt.Errorf("%s is a cluster and an image: say events cluster %s, or events image %s", name, name, name)
	case isCluster:
		return e.gatherClusterEvents(ctx, name)
	}
	return e.gatherImageEvents(ctx, name)
}

// gatherImageEvents finds an image on the hub, or in the member of the current context.
func (e *environment) gatherImageEvents(ctx context.Context, name string) (eventReader, error) {
	fleetImage, hub, err := e.findFleetImage(ctx, name)
	if err != nil {
		return nil, err
	}
	if namespace := e.namespace(); fleetImage != nil && namespace != "" {
		return nil, fmt.Errorf("-n %s: %s is a FleetDiskImage, which has no namespace: leave it out", namespace, name)
	}
	var member *connect.Cluster
	if fleetImage == nil || e.cluster != "" || e.live || e.Member != "" {
		if member, err = e.ConnectMember(ctx, e.cluster); err != nil {
			return nil, err
		}
		if fleetImage != nil && member.Context == hub.Context {
			return nil, fmt.Errorf("%s is a FleetDiskImage of the hub, which the current context is: name the member with --cluster, or leave out --live", name)
		}
	}
	if fleetImage == nil {
		image := &v1alpha1.VMDiskImage{}
		if err := member.Client.Get(ctx, client.ObjectKey{Namespace: member.Namespace, Name: name}, image); err != nil {
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
				return nil, fmt.Errorf("there is no FleetDiskImage %s on the hub, and no VMDiskImage %s/%s in context %s: name them with --hub, -n and --cluster", name, member.Namespace, name, member.Context)
			}
			return nil, member.Explain(err)
		}
	}
	return func(ctx context.Context) (sources []events.Source, unread []string, err error) {
		if fleetImage != nil {
			source, err := readEvents(ctx, hub, metav1.NamespaceDefault, map[events.Subject]bool{{Kind: "FleetDiskImage", Name: name}: true})
			if err != nil {
				return nil, nil, err
			}
			sources = append(sources, source)
		}
		if member == nil {
			return sources, nil, nil
		}
		inMember, unread, err := readMemberImageEvents(ctx, member, fleetImage, name)
		if err != nil && len(sources) > 0 {
			return sources, []string{member.Context + ": " + err.Error()}, nil
		}
		return append(sources, inMember...), unread, err
	}, nil
}

// findFleetImage returns a FleetDiskImage; nil where there is none, or no hub.
func (e *environment) findFleetImage(ctx context.Context, name string) (*v1alpha1.FleetDiskImage, *connect.Cluster, error) {
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, nil, err
	}
	image := &v1alpha1.FleetDiskImage{}
	err = hub.Client.Get(ctx, client.ObjectKey{Name: name}, image)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, hub, nil
	}
	return image, hub, hub.Explain(err)
}

// readMemberImageEvents reads the events of images in a member, and of what is made for them. unread are the
// namespaces that could not be read, with their errors, and have no source; where that is each of them, it fails.
func readMemberImageEvents(ctx context.Context, member *connect.Cluster, of *v1alpha1.FleetDiskImage, name string) (sources []events.Source, unread []string, err error) {
	images := []client.ObjectKey{{Namespace: member.Namespace, Name: name}}
	if of != nil {
		images = imagesOf(of)
	}
	var namespaces []string
	names := map[string][]string{} // by namespace
	for _, key := range images {
		if names[key.Namespace] == nil {
			namespaces = append(namespaces, key.Namespace)
		}
		names[key.Namespace] = append(names[key.Namespace], key.Name)
	}
	for _, namespace := range namespaces {
		read, failed := readImageEventsIn(ctx, member, namespace, names[namespace])
		if failed != nil {
			err = failed
			unread = append(unread, fmt.Sprintf("%s, namespace %s: %s", member.Context, namespace, failed))
			continue
		}
		sources = append(sources, read)
	}
	if len(unread) < len(namespaces) {
		err = nil
	}
	return sources, unread, err
}

// readImageEventsIn reads the events of images in one namespace of a member.
func readImageEventsIn(ctx context.Context, member *connect.Cluster, namespace string, names []string) (events.Source, error) {
	subjects := map[events.Subject]bool{}
	for _, name := range names {
		subjects[events.Subject{Kind: "VMDiskImage", Namespace: namespace, Name: name}] = true
		image := &v1alpha1.VMDiskImage{}
		if err := member.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, image); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return events.Source{}, member.Explain(err)
		}
		for kind, list := range map[string]client.ObjectList{
			"DataVolume": &cdiv1.DataVolumeList{}, "PersistentVolumeClaim": &corev1.PersistentVolumeClaimList{}, "Pod": &corev1.PodList{}, "VolumeSnapshot": &snapshotv1.VolumeSnapshotList{},
		} {
			if err := addChildren(ctx, member, subjects, kind, list, image); err != nil {
				return events.Source{}, err
			}
		}
	}
	return readEvents(ctx, member, namespace, subjects)
}

// imagesOf returns the VMDiskImages of a FleetDiskImage, those of former versions under the names that
// they had.
func imagesOf(of *v1alpha1.FleetDiskImage) []client.ObjectKey {
	images := []client.ObjectKey{{Namespace: of.Spec.TargetNamespace, Name: of.ImageNameForVersion(of.Spec.Version)}}
	for _, v := range of.Status.Versions {
		if key := (client.ObjectKey{Namespace: v.Namespace, Name: v.Image}); !slices.Contains(images, key) {
			images = append(images, key)
		}
	}
	return images
}

// addChildren adds what was made for an image. A kind that the cluster does not have, or that the
// caller may not list, has none.
func addChildren(ctx context.Context, member *connect.Cluster, subjects map[events.Subject]bool, kind string, list client.ObjectList, image *v1alpha1.VMDiskImage) error {
	err := member.List(ctx, list, client.InNamespace(image.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(image.UID)})
	if meta.IsNoMatchError(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return meta.EachListItem(list, addSubject(subjects, kind))
}

// gatherClusterEvents finds a MemberCluster, and with --live its agent.
func (e *environment) gatherClusterEvents(ctx context.Context, name string) (eventReader, error) {
	if err := e.requireLive(); err != nil {
		return nil, err
	}
	if e.cluster != "" && e.cluster != name {
		return nil, fmt.Errorf("%s is a cluster, and --cluster names another one, %s: leave it out", name, e.cluster)
	}
	if namespace := e.namespace(); namespace != "" {
		return nil, fmt.Errorf("-n %s: %s is a cluster, which has no namespace: leave it out", namespace, name)
	}
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, err
	}
	cluster, err := hub.GetMember(ctx, name)
	if err != nil {
		return nil, err
	}
	var member *connect.Cluster
	if e.live {
		if member, err = e.ConnectMember(ctx, name); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) ([]events.Source, []string, error) {
		source, err := readEvents(ctx, hub, metav1.NamespaceDefault, map[events.Subject]bool{{Kind: "MemberCluster", Name: name}: true})
		if err != nil {
			return nil, nil, err
		}
		sources := []events.Source{source}
		if member == nil {
			return sources, nil, nil
		}
		source, err = readEvents(ctx, member, join.AgentNamespace(cluster), nil)
		if err != nil {
			return sources, []string{member.Context + ": " + err.Error()}, nil
		}
		return append(sources, source), nil, nil
	}, nil
}

// readEvents reads a namespace's events about subjects; nil stands for all.
func readEvents(ctx context.Context, c *connect.Cluster, namespace string, subjects map[events.Subject]bool) (events.Source, error) {
	var list corev1.EventList
	options := []client.ListOption{client.InNamespace(namespace)}
	if len(subjects) == 1 { // the API server filters
		for s := range subjects {
			options = append(options, client.MatchingFields{"involvedObject.kind": s.Kind, "involvedObject.name": s.Name})
		}
	}
	if err := c.List(ctx, &list, options...); err != nil {
		return events.Source{}, err
	}
	source := events.Source{Side: c.Context, Namespace: namespace, Events: list.Items}
	if subjects != nil {
		source.Events = events.About(list.Items, subjects)
	}
	return source, nil
}

// addSubject returns a function that adds an object to the subjects of events.
func addSubject(subjects map[events.Subject]bool, kind string) func(runtime.Object) error {
	return func(o runtime.Object) error {
		object, err := meta.Accessor(o)
		if err == nil {
			subjects[events.Subject{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}] = true
		}
		return err
	}
}
