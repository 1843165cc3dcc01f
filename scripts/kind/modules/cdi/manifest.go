// Command cdi prints cdi-operator.yaml of CDI's release, with images that are built here.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources/namespaced"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources/operator"
	"sigs.k8s.io/yaml"
)

const namespace = "cdi"

func main() {
	version := flag.String("version", "", "CDI's version")
	repository := flag.String("repository", "", "what the names of the images start with")
	flag.Parse()
	if err := write(os.Stdout, *version, *repository); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(to io.Writer, version, repository string) error {
	image := func(name string) string { return repository + "/" + name + ":" + version }
	objects, err := operator.CreateOperatorResourceGroup("everything", &operator.FactoryArgs{
		Image: image("cdi-operator"),
		NamespacedArgs: namespaced.FactoryArgs{
			OperatorVersion:        version,
			DeployClusterResources: "true",
			ControllerImage:        image("cdi-controller"),
			ImporterImage:          image("cdi-importer"),
			ClonerImage:            image("cdi-cloner"),
			OvirtPopulatorImage:    image("cdi-importer"),
			APIServerImage:         image("cdi-apiserver"),
			UploadProxyImage:       image("cdi-uploadproxy"),
			UploadServerImage:      image("cdi-uploadserver"),
			Verbosity:              "1",
			PullPolicy:             string(corev1.PullIfNotPresent),
			Namespace:              namespace,
		},
	})
	if err != nil {
		return fmt.Errorf("making the manifest of CDI's operator: %w", err)
	}
	all := []any{&corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"cdi.kubevirt.io": ""}},
	}}
	for _, object := range objects {
		all = append(all, object)
	}
	for _, object := range all {
		text, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("writing the manifest of CDI's operator: %w", err)
		}
		if _, err := fmt.Fprintf(to, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
