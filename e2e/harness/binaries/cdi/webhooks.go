package main

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v6/clientset/versioned"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"kubevirt.io/containerized-data-importer/pkg/apiserver"
	"kubevirt.io/containerized-data-importer/pkg/apiserver/webhooks"
	cdiclient "kubevirt.io/containerized-data-importer/pkg/client/clientset/versioned"
	"kubevirt.io/containerized-data-importer/pkg/controller/datavolume"
	"kubevirt.io/containerized-data-importer/pkg/keys"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources/cluster"
	"kubevirt.io/containerized-data-importer/pkg/util"
	"kubevirt.io/containerized-data-importer/pkg/util/cert"
	"kubevirt.io/containerized-data-importer/pkg/util/cert/triple"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// registerEvery bounds how long the API server asks at a wrong address after
// its store was restored from a backup.
const registerEvery = 5 * time.Second

// tokenKey is the key that cdi-apiserver signs clone tokens with, and
// cdi-controller checks them by: both find it in the Secret of an installation.
func tokenKey(config *rest.Config) (*rsa.PrivateKey, error) {
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the clone token key: %w", err)
	}
	key, err := keys.GetOrCreatePrivateKey(core, util.GetNamespace(), apiserver.APISigningKeySecretName, nil)
	if err != nil {
		return nil, fmt.Errorf("getting the clone token key from Secret %s/%s: %w", util.GetNamespace(), apiserver.APISigningKeySecretName, err)
	}
	return key, nil
}

// serveWebhooks is cdi-apiserver without its upload tokens: all its admission
// webhooks, on a port of loopback that was free, with the registrations of
// CDI's operator that point there.
func serveWebhooks(ctx context.Context, config *rest.Config) error {
	handlers, err := webhookHandlers(ctx, config)
	if err != nil {
		return err
	}
	authority, err := triple.NewCA("cdi-apiserver-signer")
	if err != nil {
		return fmt.Errorf("generating certificate authority cdi-apiserver-signer: %w", err)
	}
	pair, err := triple.NewServerKeyPair(authority, "cdi-apiserver", "cdi-api", util.GetNamespace(), "cluster.local", []string{"127.0.0.1"}, nil)
	if err != nil {
		return fmt.Errorf("generating the certificate of the webhooks: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for admission reviews: %w", err)
	}
	server := &http.Server{
		Handler: handlers, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}}, MinVersion: tls.VersionTLS12},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(listener, "", "") }()
	registrar, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("making a client for the webhooks' registrations: %w", err)
	}
	register := func(ctx context.Context) {
		if err := registerWebhooks(ctx, registrar, "https://"+listener.Addr().String(), authority.Cert); err != nil {
			klog.Error(err)
		}
	}
	go wait.UntilWithContext(ctx, register, registerEvery)
	select {
	case <-ctx.Done():
		return server.Close()
	case err := <-ended:
		return fmt.Errorf("serving admission reviews: %w", err)
	}
}

func webhookHandlers(ctx context.Context, config *rest.Config) (*http.ServeMux, error) {
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the client of the webhooks: %w", err)
	}
	cdi, err := cdiclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the CDI client of the webhooks: %w", err)
	}
	snapshots, err := snapshotclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the snapshot client of the webhooks: %w", err)
	}
	mixed, err := newMixedClient(ctx, config)
	if err != nil {
		return nil, err
	}
	key, err := tokenKey(config)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/datavolume-mutate", webhooks.NewDataVolumeMutatingWebhook(core, cdi, key))
	mux.Handle("/datavolume-validate", webhooks.NewDataVolumeValidatingWebhook(core, cdi, snapshots, mixed))
	mux.Handle("/cdi-validate", webhooks.NewCDIValidatingWebhook(cdi))
	mux.Handle("/objecttransfer-validate", webhooks.NewObjectTransferValidatingWebhook(core, cdi))
	mux.Handle("/dataimportcron-validate", webhooks.NewDataImportCronValidatingWebhook(core, cdi))
	mux.Handle("/populator-validate", webhooks.NewPopulatorValidatingWebhook(core, cdi))
	return mux, nil
}

// mixedClient reads the same kinds from a cache as cdi-apiserver does: one of
// its lookups goes by an index, which only a cache has.
type mixedClient struct {
	client.Client
	cache cache.Cache
}

func newMixedClient(ctx context.Context, config *rest.Config) (client.Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	direct, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making the client of the webhooks: %w", err)
	}
	cached, err := cache.New(config, cache.Options{Scheme: scheme, ByObject: map[client.Object]cache.ByObject{
		&corev1.PersistentVolume{}: {}, &storagev1.StorageClass{}: {}, &cdiv1.StorageProfile{}: {},
	}})
	if err != nil {
		return nil, fmt.Errorf("making the cache of the webhooks: %w", err)
	}
	if err := datavolume.CreateAvailablePersistentVolumeIndex(cached); err != nil {
		return nil, fmt.Errorf("indexing the volumes for the webhooks: %w", err)
	}
	go func() {
		if err := cached.Start(ctx); err != nil {
			klog.Errorf("filling the cache of the webhooks: %v", err)
		}
	}()
	if !cached.WaitForCacheSync(ctx) {
		return nil, errors.New("filling the cache of the webhooks: ended before it was full")
	}
	return &mixedClient{Client: direct, cache: cached}, nil
}

func (c *mixedClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
	switch object.(type) {
	case *corev1.PersistentVolume, *storagev1.StorageClass, *cdiv1.StorageProfile:
		return c.cache.Get(ctx, key, object, o...)
	}
	return c.Client.Get(ctx, key, object, o...)
}

func (c *mixedClient) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	switch list.(type) {
	case *corev1.PersistentVolumeList, *storagev1.StorageClassList, *cdiv1.StorageProfileList:
		return c.cache.List(ctx, list, o...)
	}
	return c.Client.List(ctx, list, o...)
}

// registerWebhooks points the registrations of CDI's operator at an address
// instead of at a Service.
func registerWebhooks(ctx context.Context, c client.Client, address string, authority *x509.Certificate) error {
	objects, err := cluster.CreateDynamicResourceGroup("apiserver-registrations", &cluster.FactoryArgs{
		Namespace: util.GetNamespace(), Logger: logf.Log.WithName("webhooks"), // without a client it looks for no authority
	})
	if err != nil {
		return fmt.Errorf("making the registrations of the webhooks: %w", err)
	}
	redirect := func(to *admissionv1.WebhookClientConfig) {
		if to.Service == nil || to.Service.Path == nil {
			return
		}
		url := address + *to.Service.Path
		*to = admissionv1.WebhookClientConfig{URL: &url, CABundle: cert.EncodeCertPEM(authority)}
	}
	for _, object := range objects {
		switch registration := object.(type) {
		case *admissionv1.MutatingWebhookConfiguration:
			for i := range registration.Webhooks {
				redirect(&registration.Webhooks[i].ClientConfig)
			}
			err = apply(ctx, c, registration, &admissionv1.MutatingWebhookConfiguration{}, func(old *admissionv1.MutatingWebhookConfiguration) bool {
				return len(old.Webhooks) > 0 && reflect.DeepEqual(old.Webhooks[0].ClientConfig, registration.Webhooks[0].ClientConfig)
			})
		case *admissionv1.ValidatingWebhookConfiguration:
			for i := range registration.Webhooks {
				redirect(&registration.Webhooks[i].ClientConfig)
			}
			err = apply(ctx, c, registration, &admissionv1.ValidatingWebhookConfiguration{}, func(old *admissionv1.ValidatingWebhookConfiguration) bool {
				return len(old.Webhooks) > 0 && reflect.DeepEqual(old.Webhooks[0].ClientConfig, registration.Webhooks[0].ClientConfig)
			})
		}
		if err != nil {
			return fmt.Errorf("registering webhook %s: %w", object.GetName(), err)
		}
	}
	return nil
}

func apply[T client.Object](ctx context.Context, c client.Client, wanted, old T, same func(T) bool) error {
	err := c.Get(ctx, client.ObjectKeyFromObject(wanted), old)
	switch {
	case apierrors.IsNotFound(err):
		return c.Create(ctx, wanted)
	case err != nil || same(old):
		return err
	default:
		wanted.SetResourceVersion(old.GetResourceVersion())
		return c.Update(ctx, wanted)
	}
}
