package gather

import (
	"context"
	"fmt"
	"io"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/cli/bundle"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/doctor"
	doctorgather "github.com/pelotech/ot-fleet/cli/doctor/gather"
)

func (g *Gatherer) doctorOptions(cluster string) doctorgather.Options {
	return doctorgather.Options{Cluster: cluster, CLIVersion: g.options.CLIVersion, AgentNamespace: g.options.AgentNamespace, Now: g.options.Now}
}

func (g *Gatherer) doctor(file string, snapshot *doctor.Snapshot, err error) {
	if err != nil {
		g.Unread(file, err)
		return
	}
	g.addJSON(file, doctor.Examine(snapshot))
}

func (g *Gatherer) version(c *connect.Cluster, folder string) {
	file := path.Join(folder, "version.json")
	d, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		g.Unread(file, err)
		return
	}
	info, err := d.ServerVersion()
	if err != nil {
		g.Unread(file, err)
		return
	}
	g.addJSON(file, map[string]string{"kubernetes": info.GitVersion, "kubectl-ot": g.options.CLIVersion})
}

// policy reads the one ConfigMap that is ours.
func (g *Gatherer) policy(ctx context.Context, c *connect.Cluster, folder string) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	file := path.Join(folder, "policy.yaml")
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: policy.DefaultNamespace, Name: policy.DefaultName}, object)
	if err != nil {
		if client.IgnoreNotFound(err) != nil {
			g.Unread(file, err)
		}
		return
	}
	g.objects[file] = append(g.objects[file], object.Object)
}

// events reads those about kinds of ours, in all namespaces.
func (g *Gatherer) events(ctx context.Context, c *connect.Cluster, folder string) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	file := path.Join(folder, "events.yaml")
	var list corev1.EventList
	if err := c.Client.List(ctx, &list, client.Limit(maxObjects)); err != nil {
		g.Unread(file, err)
		return
	}
	after := g.options.Now().Add(-g.options.Since)
	for i := range list.Items {
		e := &list.Items[i]
		seen := e.LastTimestamp.Time
		if seen.IsZero() {
			seen = e.EventTime.Time
		}
		group := schema.FromAPIVersionAndKind(e.InvolvedObject.APIVersion, e.InvolvedObject.Kind).Group
		if group != own.Group || seen.Before(after) {
			continue
		}
		g.objects[file] = append(g.objects[file], map[string]any{
			"metadata": map[string]any{"namespace": e.Namespace, "name": e.Name},
			"kind":     "Event", "type": e.Type, "reason": e.Reason, "message": e.Message, "count": int64(e.Count), "lastTimestamp": seen.UTC().Format("2006-01-02T15:04:05Z"),
			"involvedObject": map[string]any{"kind": e.InvolvedObject.Kind, "namespace": e.InvolvedObject.Namespace, "name": e.InvolvedObject.Name},
		})
	}
}

// logs reads those of the program's Pods.
func (g *Gatherer) logs(ctx context.Context, c *connect.Cluster, folder, namespace string, labels map[string]string) {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(labels), client.Limit(maxPods)); err != nil {
		g.Unread(path.Join(folder, "logs"), err)
		return
	}
	clientset, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		g.Unread(path.Join(folder, "logs"), err)
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		for _, container := range pod.Spec.Containers {
			file := path.Join(folder, "logs", fmt.Sprintf("%s-%s.log", pod.Name, container.Name))
			text, err := readLog(ctx, clientset, pod, container.Name, int64(g.options.Since.Seconds()))
			if err != nil {
				g.Unread(file, err)
				continue
			}
			g.texts[file] = text
		}
	}
}

const maxPods = 20

func readLog(ctx context.Context, clientset kubernetes.Interface, pod *corev1.Pod, container string, seconds int64) (string, error) {
	stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, SinceSeconds: ptr.To(max(1, seconds)), Timestamps: false, LimitBytes: ptr.To[int64](bundle.MaxFileBytes),
	}).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }()
	text, err := io.ReadAll(io.LimitReader(stream, bundle.MaxFileBytes))
	return string(text), err
}
