package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/importlogs"
	"github.com/pelotech/ot-fleet/cli/render"
)

// maxLogLineBytes bounds a line of a log; the rest of it is left out.
const maxLogLineBytes = 16 * 1024

func (e *environment) newLogsCommand() *cobra.Command {
	follow, tail, since := false, int64(0), time.Duration(0)
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "The log of the Pod that imports a VMDiskImage",
		Long: `logs prints the log of the importer Pod of an image's newest attempt, in the member of the
current context, or of --cluster. Where none runs it says so, with what the last failure said, and
ends with exit code 1.`,
		Example: "  kubectl ot logs ubuntu-2.1.0 -n vmdi-farm --cluster bergen -f",
		Args:    cobra.ExactArgs(1),
	}
	useScopeFlags(cmd, objectFlags...)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the importer ends")
	cmd.Flags().Int64Var(&tail, "tail", 0, "the last lines only; 0 prints all")
	addDuration(cmd.Flags(), &since, "since", 0, "lines of this time only, as 10m")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		member, err := e.ConnectMember(ctx, e.cluster)
		if err != nil {
			return err
		}
		image := &v1alpha1.VMDiskImage{}
		if err := member.Get(ctx, client.ObjectKey{Namespace: member.Namespace, Name: args[0]}, image); err != nil {
			return err
		}
		var pods corev1.PodList
		if err := member.List(ctx, &pods, client.InNamespace(image.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(image.UID)}); err != nil {
			return err
		}
		choice, waiting, ok := importlogs.Choose(image, pods.Items)
		if !ok {
			return e.show(importlogs.NewAbsent(e.now(), image, waiting), exit.No)
		}
		e.printNote("%s", describeChoice(image, choice))
		options := &corev1.PodLogOptions{Container: choice.Container, Follow: follow && !choice.Ended && !choice.Previous, Previous: choice.Previous}
		if tail > 0 {
			options.TailLines = &tail
		}
		if since > 0 {
			seconds := max(1, int64(since.Seconds()))
			options.SinceSeconds = &seconds
		}
		return e.printLog(ctx, member, image.Namespace, choice.Pod, options)
	})
	return cmd
}

func describeChoice(image *v1alpha1.VMDiskImage, c importlogs.Choice) string {
	text := fmt.Sprintf("Pod %s/%s, attempt %d", image.Namespace, c.Pod, c.Attempt)
	switch {
	case c.Previous:
		text += ", the log before its restart"
	case c.Ended:
		text += ", which has ended"
	}
	return text
}

// printLog prints a log, safe for a terminal.
func (e *environment) printLog(ctx context.Context, c *connect.Cluster, namespace, pod string, options *corev1.PodLogOptions) error {
	clientset, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	stream, err := clientset.CoreV1().Pods(namespace).GetLogs(pod, options).Stream(ctx)
	if err != nil {
		return c.Explain(err)
	}
	defer func() { _ = stream.Close() }()
	err = copyLines(e.Out, stream)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// copyLines copies a log line by line, without what moves a cursor. A line without an end, as a
// progress bar is, does not grow beyond its bound.
func copyLines(out io.Writer, log io.Reader) error {
	lines := bufio.NewReaderSize(log, maxLogLineBytes)
	for {
		line, isPrefix, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the log: %w", err)
		}
		text := render.Printable(string(line))
		for cut := isPrefix; isPrefix && err == nil; {
			if cut {
				text, cut = text+" …", false
			}
			_, isPrefix, err = lines.ReadLine()
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
}
