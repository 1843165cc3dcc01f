// Package liveread lists objects from the API server with one of them in memory at a time. Anybody may
// give hundreds of objects of 1 MiB the labels that the agent lists by: a list of them that is read as a
// whole fills its memory, or is not complete within the timeout of a request.
package liveread

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/pelotech/ot-fleet/agent/cachebounds"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pageSize bounds what one request has to transfer: at most 75 MiB.
const pageSize = 50

// asMetadata is what clients of metadata accept.
const asMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// Reader is a client.Reader whose lists of others' kinds and the agent's own have objects as in the
// caches (cachebounds.Trim).
type Reader struct {
	client.Reader
	api    rest.Interface
	mapper meta.RESTMapper
	scheme *runtime.Scheme
}

// New returns a Reader of all that other, which must not be cached, reads.
func New(cfg *rest.Config, other client.Reader, mapper meta.RESTMapper, scheme *runtime.Scheme) (*Reader, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentConfig = rest.ContentConfig{NegotiatedSerializer: clientgoscheme.Codecs.WithoutConversion()}
	api, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &Reader{other, api, mapper, scheme}, nil
}

// List lists in pages of pageSize, up to the limit that is asked for: a caller with a limit continues as
// the list says.
func (r *Reader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch list.(type) {
	case *corev1.PodList, *corev1.PersistentVolumeClaimList, *cdiv1.DataVolumeList, *cdiv1.DataSourceList, *snapshotv1.VolumeSnapshotList,
		*v1alpha1.VMDiskImageList, *v1alpha1.VirtualMachineList, *metav1.PartialObjectMetadataList:
	default:
		return r.Reader.List(ctx, list, options...)
	}
	o := (&client.ListOptions{}).ApplyOptions(options)
	path, kind, err := r.path(list, o.Namespace)
	if err != nil {
		return err
	}
	list.SetContinue(o.Continue)
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	items.SetLen(0)
	for {
		if err := r.readPage(ctx, path, kind, list, items, o); err != nil {
			return err
		}
		if list.GetContinue() == "" || o.Limit > 0 {
			return nil
		}
	}
}

// path returns the path of a kind, and the kind of its lists. Where the kind is not served, the error says so
// (meta.IsNoMatchError).
func (r *Reader) path(list client.ObjectList, namespace string) (path, kind string, err error) {
	gvk, err := apiutil.GVKForObject(list, r.scheme)
	if err != nil {
		return "", "", err
	}
	mapping, err := r.mapper.RESTMapping(schema.GroupKind{Group: gvk.Group, Kind: gvk.Kind[:len(gvk.Kind)-len("List")]}, gvk.Version)
	if err != nil {
		return "", "", err
	}
	path = "/apis/" + gvk.GroupVersion().String()
	if gvk.Group == "" {
		path = "/api/" + gvk.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + mapping.Resource.Resource, gvk.Kind, nil
}

func (r *Reader) readPage(ctx context.Context, path, kind string, list client.ObjectList, items reflect.Value, o *client.ListOptions) error {
	limit := int64(pageSize)
	if o.Limit > 0 {
		limit = min(limit, o.Limit)
	}
	request := r.api.Get().AbsPath(path).Param("limit", strconv.FormatInt(limit, 10)).SetHeader("Accept", "application/json")
	kinds := []string{kind}
	if _, isMetadata := list.(*metav1.PartialObjectMetadataList); isMetadata {
		request.SetHeader("Accept", asMetadata)
		kinds = append(kinds, "PartialObjectMetadataList")
	}
	if next := list.GetContinue(); next != "" {
		request.Param("continue", next)
	}
	if o.LabelSelector != nil {
		request.Param("labelSelector", o.LabelSelector.String())
	}
	if o.FieldSelector != nil {
		request.Param("fieldSelector", o.FieldSelector.String())
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	listMeta, err := decodeList(body, items, kinds)
	if err != nil {
		return fmt.Errorf("reading a list of %s: %w", path, err)
	}
	list.SetContinue(listMeta.Continue)
	list.SetResourceVersion(listMeta.ResourceVersion)
	return nil
}

// decodeList appends the items of a list, each decoded and trimmed by itself. Invariant: what is no complete
// list of one of these kinds is an error, since what it lacks would count as deleted.
func decodeList(body io.Reader, items reflect.Value, kinds []string) (listMeta metav1.ListMeta, err error) {
	decoder := json.NewDecoder(body)
	if err := expect(decoder, json.Delim('{')); err != nil {
		return listMeta, err
	}
	kind, hasItems := "", false
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return listMeta, err
		}
		switch key {
		case "kind":
			err = decoder.Decode(&kind)
		case "metadata":
			err = decoder.Decode(&listMeta)
		case "items":
			hasItems = true
			err = decodeItems(decoder, items)
		default:
			err = decoder.Decode(&json.RawMessage{})
		}
		if err != nil {
			return listMeta, err
		}
	}
	if err := expect(decoder, json.Delim('}')); err != nil {
		return listMeta, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return listMeta, cmp.Or(err, errors.New("it has more than one object"))
	}
	if !slices.Contains(kinds, kind) || !hasItems || listMeta.ResourceVersion == "" {
		return listMeta, fmt.Errorf("it is a %q with resourceVersion %q, and no complete %s", v1alpha1.SanitizeText(kind, 64), listMeta.ResourceVersion, kinds[0])
	}
	return listMeta, nil
}

func decodeItems(decoder *json.Decoder, items reflect.Value) error {
	begin, err := decoder.Token()
	if err != nil || begin == nil { // null, for none
		return err
	}
	if begin != json.Delim('[') {
		return fmt.Errorf("its items begin with %v", begin)
	}
	for decoder.More() {
		item := reflect.New(items.Type().Elem())
		if err := decoder.Decode(item.Interface()); err != nil {
			return err
		}
		if _, err := cachebounds.Trim(item.Interface()); err != nil {
			return err
		}
		items.Set(reflect.Append(items, item.Elem()))
	}
	return expect(decoder, json.Delim(']'))
}

func expect(decoder *json.Decoder, want json.Delim) error {
	token, err := decoder.Token()
	if err == nil && token != want {
		err = fmt.Errorf("it has %v where %v is expected", token, want)
	}
	return err
}
