// Command virtapi is KubeVirt's virt-api as far as the admission of
// VirtualMachines, their instances, instance types and preferences goes: on a
// port of loopback that was free, with the registrations of KubeVirt's operator
// for these, which point there. It is a program of its own because what it
// imports works for seconds before it starts.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"syscall"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/tools/clientcmd"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubecli"
	"kubevirt.io/client-go/log"
	"kubevirt.io/kubevirt/pkg/certificates/triple"
	"kubevirt.io/kubevirt/pkg/certificates/triple/cert"
	"kubevirt.io/kubevirt/pkg/controller"
	netadmitter "kubevirt.io/kubevirt/pkg/network/admitter"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks"
	mutating "kubevirt.io/kubevirt/pkg/virt-api/webhooks/mutating-webhook"
	validating "kubevirt.io/kubevirt/pkg/virt-api/webhooks/validating-webhook"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

const (
	namespace = "kubevirt"
	// registerEvery bounds how long the API server asks at a wrong address after
	// its store was restored from a backup.
	registerEvery = 5 * time.Second
)

// errAnew says that CDI's kinds have come or gone: virt-api starts over then.
var errAnew = errors.New("CDI's kinds have come or gone")

func main() {
	err := serveWebhooks()
	if errors.Is(err, errAnew) {
		// The real one counts on the kubelet to start it anew.
		err = fmt.Errorf("starting anew: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveWebhooks() error {
	kubecli.Init() // defines -kubeconfig
	log.InitializeLogging("virt-api")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", flag.Lookup("kubeconfig").Value.String())
	if err != nil {
		return fmt.Errorf("loading the kubeconfig (pass -kubeconfig): %w", err)
	}
	config.QPS, config.Burst = 200, 400
	virt, err := kubecli.GetKubevirtClientFromRESTConfig(config)
	if err != nil {
		return fmt.Errorf("making the client of the webhooks: %w", err)
	}
	anew := make(chan struct{}, 1)
	mux, err := newHandlers(ctx, virt, anew)
	if err != nil {
		return err
	}
	authority, err := triple.NewCA("kubevirt.io", 10*365*24*time.Hour)
	if err != nil {
		return fmt.Errorf("generating the certificate authority of the webhooks: %w", err)
	}
	pair, err := triple.NewServerKeyPair(authority, "virt-api", "virt-api", namespace, "cluster.local", []string{"127.0.0.1"}, nil, 10*365*24*time.Hour)
	if err != nil {
		return fmt.Errorf("generating the certificate of the webhooks: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for admission reviews: %w", err)
	}
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}}, MinVersion: tls.VersionTLS12},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(listener, "", "") }()
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := register(ctx, virt.AdmissionregistrationV1(), "https://"+listener.Addr().String(), authority.Cert, mux); err != nil {
			log.Log.Reason(err).Error("registering the webhooks")
		}
	}, registerEvery)
	select {
	case <-ctx.Done():
		return server.Close()
	case <-anew:
		_ = server.Close() // the program goes over into its next run
		return errAnew
	case err := <-ended:
		return fmt.Errorf("serving admission reviews: %w", err)
	}
}

// newHandlers assembles what the handlers need as virt-api does.
func newHandlers(ctx context.Context, virt kubecli.KubevirtClient, anew chan<- struct{}) (*http.ServeMux, error) {
	informers := controller.NewKubeInformerFactory(virt.RestClient(), virt, nil, namespace)
	kubevirts, crds := informers.KubeVirt(), informers.CRD()
	known := &webhooks.Informers{
		VMIPresetInformer: informers.VirtualMachinePreset(), VMRestoreInformer: informers.VirtualMachineRestore(),
		VMBackupInformer: informers.VirtualMachineBackup(), NamespaceInformer: informers.Namespace(),
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	config, err := virtconfig.NewClusterConfig(crds, kubevirts, namespace)
	if err != nil {
		return nil, fmt.Errorf("reading KubeVirt's configuration: %w", err)
	}
	hadSources := config.HasDataSourceAPI()
	if hadSources {
		known.DataSourceInformer = informers.DataSource()
	} else {
		known.DataSourceInformer = informers.DummyDataSource()
	}
	config.SetConfigModifiedCallback(func() {
		if config.HasDataSourceAPI() != hadSources {
			select {
			case anew <- struct{}{}:
			default:
			}
		}
	})
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())

	accounts := webhooks.KubeVirtServiceAccounts(namespace)
	mux := http.NewServeMux()
	for path, serve := range map[string]http.HandlerFunc{
		components.VMMutatePath:  func(w http.ResponseWriter, r *http.Request) { mutating.ServeVMs(w, r, config, virt) },
		components.VMIMutatePath: func(w http.ResponseWriter, r *http.Request) { mutating.ServeVMIs(w, r, config, known, accounts) },
		components.VMValidatePath: func(w http.ResponseWriter, r *http.Request) {
			validating.ServeVMs(w, r, config, virt, known, accounts)
		},
		components.VMICreateValidatePath: func(w http.ResponseWriter, r *http.Request) {
			validating.ServeVMICreate(w, r, config, accounts,
				func(at *field.Path, spec *kubevirtv1.VirtualMachineInstanceSpec, config *virtconfig.ClusterConfig) []metav1.StatusCause {
					return netadmitter.Validate(at, spec, config)
				})
		},
		components.VMIUpdateValidatePath: func(w http.ResponseWriter, r *http.Request) { validating.ServeVMIUpdate(w, r, config, accounts) },
		components.StatusValidatePath: func(w http.ResponseWriter, r *http.Request) {
			validating.ServeStatusValidation(w, r, config, virt, known, accounts)
		},
		components.VMInstancetypeValidatePath:        func(w http.ResponseWriter, r *http.Request) { validating.ServeVmInstancetypes(w, r) },
		components.VMClusterInstancetypeValidatePath: func(w http.ResponseWriter, r *http.Request) { validating.ServeVmClusterInstancetypes(w, r) },
		components.VMPreferenceValidatePath:          func(w http.ResponseWriter, r *http.Request) { validating.ServeVmPreferences(w, r) },
		components.VMClusterPreferenceValidatePath:   func(w http.ResponseWriter, r *http.Request) { validating.ServeVmClusterPreferences(w, r) },
	} {
		mux.HandleFunc(path, serve)
	}
	return mux, nil
}

// register points the operator's registrations at an address instead of at a
// Service, and leaves out those that nobody serves here.
func register(ctx context.Context, c admissionclient.AdmissionregistrationV1Interface, address string, authority *x509.Certificate, mux *http.ServeMux) error {
	unserved := func(to admissionv1.WebhookClientConfig) bool {
		_, pattern := mux.Handler(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: *to.Service.Path}})
		return pattern == ""
	}
	redirect := func(to *admissionv1.WebhookClientConfig) {
		at := address + *to.Service.Path
		*to = admissionv1.WebhookClientConfig{URL: &at, CABundle: cert.EncodeCertPEM(authority)}
	}
	mutators := components.NewVirtAPIMutatingWebhookConfiguration(namespace)
	mutators.Webhooks = slices.DeleteFunc(mutators.Webhooks, func(w admissionv1.MutatingWebhook) bool { return unserved(w.ClientConfig) })
	for i := range mutators.Webhooks {
		redirect(&mutators.Webhooks[i].ClientConfig)
	}
	validators := components.NewVirtAPIValidatingWebhookConfiguration(namespace)
	validators.Webhooks = slices.DeleteFunc(validators.Webhooks, func(w admissionv1.ValidatingWebhook) bool { return unserved(w.ClientConfig) })
	for i := range validators.Webhooks {
		redirect(&validators.Webhooks[i].ClientConfig)
	}
	oldMutators, err := c.MutatingWebhookConfigurations().Get(ctx, mutators.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = c.MutatingWebhookConfigurations().Create(ctx, mutators, metav1.CreateOptions{})
	case err == nil && !reflect.DeepEqual(oldMutators.Webhooks[0].ClientConfig, mutators.Webhooks[0].ClientConfig):
		mutators.ResourceVersion = oldMutators.ResourceVersion
		_, err = c.MutatingWebhookConfigurations().Update(ctx, mutators, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("registering webhooks %s: %w", mutators.Name, err)
	}
	oldValidators, err := c.ValidatingWebhookConfigurations().Get(ctx, validators.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = c.ValidatingWebhookConfigurations().Create(ctx, validators, metav1.CreateOptions{})
	case err == nil && !reflect.DeepEqual(oldValidators.Webhooks[0].ClientConfig, validators.Webhooks[0].ClientConfig):
		validators.ResourceVersion = oldValidators.ResourceVersion
		_, err = c.ValidatingWebhookConfigurations().Update(ctx, validators, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("registering webhooks %s: %w", validators.Name, err)
	}
	return nil
}
