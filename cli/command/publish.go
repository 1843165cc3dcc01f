package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/publish"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// publishFlags are those that are no part of the request.
type publishFlags struct {
	file, manifest, selector, dryRun string
	wait, force, noProbe             bool
}

func (e *environment) newPublishCommand() *cobra.Command {
	request, flags := publish.Request{}, publishFlags{}
	cmd := &cobra.Command{
		Use:   "publish NAME --version VERSION --url URL [--file DISK | --checksum SUM] [--wait]",
		Short: "Publish a version of an image to clusters of the fleet",
		Long: `publish writes a FleetDiskImage by server-side apply, and says what changes and what clusters
download. Nothing is uploaded: --file is read for the size of the disk and its checksum. What a
flag does not name stays as it is, spec.overrides included: -f gives others. Where Argo CD or Flux
owns the version, it is refused.

Exit codes are those of kubectl ot image wait with --wait; else 0 where it is written. A dry run
ends with 1 where clusters could not begin: they lack a label that an override's url names, or
spec.overrides make an invalid image of the template.`,
		Example: `  kubectl ot image publish ubuntu --version 2.1.0 --url https://images.example.com/ubuntu-2.1.0.qcow2 --size 24Gi --target-namespace vmdi-farm -l region=nordics --wait
  kubectl ot image publish ubuntu -f ubuntu.yaml --dry-run=server`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&request.Version, "version", "", "version, as in 2.1.0")
	f.StringVar(&request.URL, "url", "", "where clusters download the image from")
	f.StringVar(&request.Checksum, "checksum", "", "of the file at the URL, as in sha256:5d1f…")
	f.StringVar(&flags.file, "file", "", "the disk image that was uploaded to the URL: qcow2 or raw")
	f.StringVar(&request.Type, "type", "", "http, s3, gcs, registry or blank. Default: as before, else by the URL")
	f.StringVar(&request.Size, "size", "", "size of the disk, as in 24Gi. Default: that of --file, else as before")
	f.StringVar(&request.TargetNamespace, "target-namespace", "", "namespace of the images in the clusters")
	f.StringVarP(&flags.selector, "selector", "l", "", "clusters by their labels, as in region=nordics; '' for all")
	allowEmpty(cmd, "selector")
	f.StringSliceVar(&request.Clusters, "clusters", nil, "clusters by name, as in bergen,oslo")
	f.StringArrayVar(&request.Waves, "wave", nil, "a wave and its clusters, in order, as in canary=ring=canary; may be repeated")
	f.StringVarP(&flags.manifest, "filename", "f", "", "a FleetDiskImage in YAML that flags are added to; - for standard input")
	f.StringVar(&flags.dryRun, "dry-run", "", "client: write nothing; server: let the API server check it, and write nothing")
	f.BoolVar(&flags.wait, "wait", false, "wait until the rollout has ended or waits for a person")
	f.BoolVar(&flags.noProbe, "no-probe", false, "do not ask the source how large the download is")
	f.BoolVar(&flags.force, "force-conflicts", false, "take over fields that others own, GitOps included")
	e.addWaitFlags(cmd)
	addNeed(cmd, "wait", "timeout", "until-hold", "allow-unknown")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("selector") {
			request.Selector = &flags.selector
		}
		request.Name = args[0]
		return e.publish(cmd.Context(), request, flags)
	}
	return cmd
}

func (e *environment) publish(ctx context.Context, request publish.Request, flags publishFlags) (err error) {
	if flags.dryRun != "" && flags.dryRun != "client" && flags.dryRun != "server" && flags.dryRun != "none" {
		return fmt.Errorf("--dry-run %s: must be client or server", flags.dryRun)
	}
	if flags.dryRun == "none" {
		flags.dryRun = ""
	}
	hub, err := e.ConnectHub()
	if err != nil {
		return err
	}
	if flags.manifest != "" {
		if request.Manifest, err = e.readManifest(flags.manifest); err != nil {
			return err
		}
	}
	if flags.file != "" {
		if request.Disk, err = publish.ReadDisk(ctx, flags.file); err != nil {
			return err
		}
	}
	if !flags.noProbe {
		request.SourceBytes = e.probeSource(ctx, request.URL)
	}
	var members v1alpha1.MemberClusterList
	if err := hub.List(ctx, &members); err != nil {
		return err
	}
	var plan *publish.Plan
	for tries := 0; ; tries++ {
		if plan, err = planPublication(ctx, hub, request, members.Items, flags); err != nil {
			return err
		}
		if flags.dryRun == "client" {
			if err := plan.CheckTemplate(); err != nil {
				return err
			}
			break
		}
		if err = applyPlan(ctx, hub, plan, flags); err == nil {
			break
		}
		if !isStale(err) || tries == maxTries {
			return hub.Explain(err)
		}
	}
	if !flags.wait || flags.dryRun != "" {
		return e.show(plan, plan.Code())
	}
	if e.format.Screen() || e.output == "markdown" {
		if err := e.show(plan, exit.Yes); err != nil {
			return err
		}
	}
	written := &v1alpha1.FleetDiskImage{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(plan.Object.Object, written); err != nil {
		return fmt.Errorf("reading what was written: %w", err)
	}
	return e.waitForRollout(ctx, hub, request.Name, rollout.Goal{Kind: rollout.GoalReady}, rollout.WantOf(written))
}

// planPublication reads what is stored and plans the change of that.
func planPublication(ctx context.Context, hub *connect.Cluster, request publish.Request, members []v1alpha1.MemberCluster, flags publishFlags) (*publish.Plan, error) {
	stored, err := getFleetImage(ctx, hub, request.Name)
	switch {
	case apierrors.IsNotFound(err):
		stored = nil
	case err != nil:
		return nil, err
	}
	plan, err := publish.NewPlan(request, stored, members)
	if err != nil {
		return nil, err
	}
	plan.DryRun = flags.dryRun
	if stored == nil {
		return plan, nil
	}
	notes, err := checkOwner(stored, plan.Fields(), flags.force)
	if err != nil {
		return nil, err
	}
	plan.Notes = append(plan.Notes, notes...)
	return plan, nil
}

// applyPlan applies a plan to the FleetDiskImage that it was made for. What other verbs have
// patched counts as of another manager: that is taken over, since it is still what was read.
func applyPlan(ctx context.Context, hub *connect.Cluster, plan *publish.Plan, flags publishFlags) error {
	options := []client.ApplyOption{client.FieldOwner(ownership.FieldManager)}
	if flags.force {
		options = append(options, client.ForceOwnership)
	}
	if flags.dryRun == "server" {
		options = append(options, client.DryRunAll)
	}
	object := plan.Object.DeepCopy()
	err := hub.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), options...)
	if ownership.ConflictsWithItself(err) {
		object = plan.Object.DeepCopy()
		err = hub.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), append(options, client.ForceOwnership)...)
	}
	switch {
	case err == nil:
		plan.Written, plan.Object = flags.dryRun == "", object
		return nil
	case apierrors.IsConflict(err) && !isStale(err):
		return fmt.Errorf("others own fields that this would change; --force-conflicts takes them over: %w", err)
	default:
		return err
	}
}

// isStale reports whether the object has changed since it was read, as opposed to a conflict
// between field managers.
func isStale(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsConflict(err) && errors.As(err, &status) && (status.Status().Details == nil || len(status.Status().Details.Causes) == 0)
}

// openInput opens a file, or standard input for "-".
func (e *environment) openInput(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(e.In), nil
	}
	return os.Open(path)
}

func (e *environment) readManifest(path string) ([]byte, error) {
	const maxManifest = 1 << 20
	in, err := e.openInput(path)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	defer func() { _ = in.Close() }()
	text, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("-f %s: %w", path, err)
	case len(text) > maxManifest:
		return nil, fmt.Errorf("-f %s: is larger than 1 MiB", path)
	case strings.TrimSpace(string(text)) == "":
		return nil, fmt.Errorf("-f %s: is empty", path)
	}
	return text, nil
}

// probeTimeout bounds the question to the source: clusters may reach it where this machine does not.
const probeTimeout = 5 * time.Second

// probeSource asks an http source for the size of a download; 0 where it does not say.
func (e *environment) probeSource(ctx context.Context, url string) int64 {
	if !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "http://") {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return 0
		}
		e.printNote("the source does not answer from here; clusters may reach it")
		return 0
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		e.printNote("the source answers %s from here, without credentials", response.Status)
		return 0
	}
	return max(0, response.ContentLength)
}
