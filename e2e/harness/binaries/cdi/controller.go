// Command cdi runs the controllers of Containerized Data Importer exactly as
// its own cmd/cdi-controller assembles them, minus what ties that command to a
// pod: there is no metrics listener on a fixed port, no /tmp/ready, no leader
// election and no key file below /var/run. Any number of instances can run on
// one machine as an ordinary user, one for each control plane.
//
// With -webhooks it is CDI's cdi-apiserver instead, as far as admission goes:
// see serveWebhooks.
//
// With -print-crds it writes CDI's CustomResourceDefinitions to standard output
// instead, so that their Go packages stay out of the project's own module.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v6/apis/volumesnapshot/v1"
	ocpconfigv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	routev1 "github.com/openshift/api/route/v1"
	"go.uber.org/zap/zapcore"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	forklift "kubevirt.io/containerized-data-importer-api/pkg/apis/forklift/v1beta1"
	"kubevirt.io/containerized-data-importer/pkg/common"
	"kubevirt.io/containerized-data-importer/pkg/controller"
	"kubevirt.io/containerized-data-importer/pkg/controller/datavolume"
	"kubevirt.io/containerized-data-importer/pkg/controller/populators"
	"kubevirt.io/containerized-data-importer/pkg/controller/transfer"
	metrics "kubevirt.io/containerized-data-importer/pkg/monitoring/metrics/cdi-controller"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources"
	"kubevirt.io/containerized-data-importer/pkg/util"
	"kubevirt.io/containerized-data-importer/pkg/util/cert"
	"kubevirt.io/containerized-data-importer/pkg/util/cert/fetcher"
	"kubevirt.io/containerized-data-importer/pkg/util/cert/generator"
	"kubevirt.io/containerized-data-importer/pkg/util/cert/triple"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// No node pulls these: the simulated kubelet only looks at labels and at the
// importer's environment.
const (
	importerImage          = "cdi-importer"
	clonerImage            = "cdi-cloner"
	uploadServerImage      = "cdi-uploadserver"
	ovirtPopulatorImage    = "ovirt-populator"
	uploadProxyServiceName = "cdi-uploadproxy"
	pullPolicy             = "IfNotPresent"
)

func main() {
	printCRDs := flag.Bool("print-crds", false, "write CDI's CustomResourceDefinitions to standard output and exit")
	admission := flag.Bool("webhooks", false, "serve CDI's admission webhooks instead of its controllers")
	klog.InitFlags(nil)
	flag.Parse()
	if *printCRDs {
		writeCRDs()
		return
	}
	if err := run(signals.SetupSignalHandler(), flag.Lookup("v").Value.String(), *admission); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeCRDs() {
	var names []string
	for name := range resources.CDICRDs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("---\n%s\n", resources.CDICRDs[name])
	}
}

func run(ctx context.Context, verbosity string, admission bool) error {
	level, err := strconv.Atoi(verbosity)
	if err != nil {
		return fmt.Errorf("reading flag -v %q as a number: %w", verbosity, err)
	}
	logf.SetLogger(zap.New(zap.Level(zapcore.Level(-level)), zap.UseDevMode(level > 1)))
	restConfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("loading the kubeconfig (pass -kubeconfig): %w", err)
	}
	if admission {
		return serveWebhooks(ctx, restConfig)
	}
	if err := metrics.SetupMetrics(); err != nil {
		return fmt.Errorf("registering CDI's metrics: %w", err)
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	mgr, err := manager.New(restConfig, manager.Options{
		Scheme:  scheme,
		Cache:   cacheOptions(util.GetNamespace()),
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return fmt.Errorf("setting up the controllers against %s: %w", restConfig.Host, err)
	}
	if err := addControllers(ctx, mgr, verbosity); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, cdiv1.AddToScheme, extv1.AddToScheme, snapshotv1.AddToScheme,
		forklift.AddToScheme, imagev1.Install, ocpconfigv1.Install, routev1.Install,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("assembling CDI's scheme: %w", err)
		}
	}
	return scheme, nil
}

// cacheOptions restricts the same kinds to CDI's own namespace as CDI does.
func cacheOptions(namespace string) cache.Options {
	own := cache.ByObject{Field: fields.Set{"metadata.namespace": namespace}.AsSelector()}
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&networkingv1.Ingress{}: own,
		&batchv1.CronJob{}:      own,
		&batchv1.Job{}:          own,
		&corev1.ConfigMap{}:     own,
		&corev1.Secret{}:        own,
	}}
}

// addControllers keeps the order of CDI's cmd/cdi-controller: the indexes have
// to exist before the controllers that look things up through them.
func addControllers(ctx context.Context, mgr manager.Manager, verbosity string) error {
	token, err := tokenKey(mgr.GetConfig())
	if err != nil {
		return err
	}
	public := &token.PublicKey
	serverCerts, serverBundle, err := authority("cdi-uploadserver-signer")
	if err != nil {
		return err
	}
	clientCerts, clientBundle, err := authority("cdi-uploadserver-client-signer")
	if err != nil {
		return err
	}
	log, labels := logf.Log.WithName("controller"), map[string]string{}

	for _, step := range []struct {
		name string
		add  func() error
	}{
		{"config", only(func() (any, error) {
			return controller.NewConfigController(mgr, log, uploadProxyServiceName, common.ConfigName, labels)
		})},
		{"storageprofile", only(func() (any, error) { return controller.NewStorageProfileController(mgr, log, labels) })},
		{"datavolume indexes", func() error { return datavolume.CreateCommonIndexes(mgr) }},
		{"datavolume import", only(func() (any, error) { return datavolume.NewImportController(ctx, mgr, log, labels) })},
		{"datavolume upload", only(func() (any, error) { return datavolume.NewUploadController(ctx, mgr, log, labels) })},
		{"datavolume pvc clone", only(func() (any, error) {
			return datavolume.NewPvcCloneController(ctx, mgr, log, clonerImage, importerImage, pullPolicy, public, token, labels)
		})},
		{"datavolume snapshot clone", only(func() (any, error) {
			return datavolume.NewSnapshotCloneController(ctx, mgr, log, clonerImage, importerImage, pullPolicy, public, token, labels)
		})},
		{"datavolume population", only(func() (any, error) { return datavolume.NewPopulatorController(ctx, mgr, log, labels) })},
		{"import", only(func() (any, error) {
			return controller.NewImportController(mgr, log, importerImage, pullPolicy, verbosity, labels)
		})},
		{"clone", only(func() (any, error) {
			return controller.NewCloneController(mgr, log, clonerImage, pullPolicy, verbosity, clientCerts, serverBundle, public, labels)
		})},
		{"upload", only(func() (any, error) {
			return controller.NewUploadController(mgr, log, uploadServerImage, pullPolicy, verbosity, serverCerts, clientBundle, labels)
		})},
		{"transfer", only(func() (any, error) { return transfer.NewObjectTransferController(mgr, log, labels) })},
		{"dataimportcron", only(func() (any, error) {
			return controller.NewDataImportCronController(mgr, log, importerImage, pullPolicy, labels)
		})},
		{"datasource", only(func() (any, error) { return controller.NewDataSourceController(mgr, log, labels) })},
		{"populator indexes", func() error { return populators.CreateCommonPopulatorIndexes(mgr) }},
		{"import populator", only(func() (any, error) { return populators.NewImportPopulator(ctx, mgr, log, labels) })},
		{"upload populator", only(func() (any, error) { return populators.NewUploadPopulator(ctx, mgr, log, labels) })},
		{"clone populator", only(func() (any, error) {
			return populators.NewClonePopulator(ctx, mgr, log, clonerImage, pullPolicy, labels, public)
		})},
		{"forklift populator", only(func() (any, error) {
			return populators.NewForkliftPopulator(ctx, mgr, log, importerImage, ovirtPopulatorImage, labels)
		})},
	} {
		if err := step.add(); err != nil {
			return fmt.Errorf("setting up CDI's %s controller (are all CDI CRDs installed?): %w", step.name, err)
		}
	}
	return nil
}

func only(construct func() (any, error)) func() error {
	return func() error {
		_, err := construct()
		return err
	}
}

// authority makes the certificate authority that an installation would mount
// as a Secret; it lives as long as the process.
func authority(name string) (*generator.FetchCertGenerator, *fetcher.MemCertBundleFetcher, error) {
	pair, err := triple.NewCA(name)
	if err != nil {
		return nil, nil, fmt.Errorf("generating certificate authority %s: %w", name, err)
	}
	certificate := cert.EncodeCertPEM(pair.Cert)
	return &generator.FetchCertGenerator{Fetcher: &fetcher.MemCertFetcher{Cert: certificate, Key: cert.EncodePrivateKeyPEM(pair.Key)}},
		&fetcher.MemCertBundleFetcher{Bundle: certificate}, nil
}
