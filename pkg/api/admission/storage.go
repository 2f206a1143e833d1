package admission

import (
	"context"
	"errors"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper"
	corestorage "k8s.io/kubernetes/pkg/apis/storage"

	"github.com/coracle-dev/coracle/apis/storage"
)

// Upstream's plugins with these names would link the kubelet's volume code for a few constants.
const (
	defaultStorageClass = "DefaultStorageClass"
	storageInUse        = "StorageObjectInUseProtection"
	volumeProtection    = "kubernetes.io/pv-protection"
	claimProtection     = "kubernetes.io/pvc-protection"
	classProtection     = "kubernetes.io/vac-protection"
)

// newStorageObject reports whether a request creates an object, not a subresource.
func newStorageObject(a admission.Attributes) bool {
	return a.GetOperation() == admission.Create && a.GetSubresource() == ""
}

// classDefault gives claims without a storage class the default one, like upstream's plugin DefaultStorageClass.
type classDefault struct {
	*admission.Handler
	classes storagelisters.StorageClassLister
}

func registerClassDefault(all *admission.Plugins) {
	all.Register(defaultStorageClass, func(io.Reader) (admission.Interface, error) {
		return &classDefault{Handler: admission.NewHandler(admission.Create)}, nil
	})
}

func (d *classDefault) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	i := f.Storage().V1().StorageClasses()
	d.classes = i.Lister()
	d.SetReadyFunc(i.Informer().HasSynced)
}

func (d *classDefault) ValidateInitialization() error {
	if d.classes == nil {
		return errors.New("missing lister")
	}
	return nil
}

func (d *classDefault) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*core.PersistentVolumeClaim)
	if !ok || !newStorageObject(a) || helper.PersistentVolumeClaimHasClass(claim) {
		return nil
	}
	all, err := d.classes.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if class := storage.Default(all); class != nil {
		claim.Spec.StorageClassName = &class.Name
	}
	return nil
}

// inUse adds the finalizers that protect volumes, claims and volume attributes classes in use from deletion, like
// upstream's plugin StorageObjectInUseProtection.
type inUse struct{ *admission.Handler }

func registerInUse(all *admission.Plugins) {
	all.Register(storageInUse, func(io.Reader) (admission.Interface, error) {
		return inUse{admission.NewHandler(admission.Create)}, nil
	})
}

func (inUse) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !newStorageObject(a) {
		return nil
	}
	switch o := a.GetObject().(type) {
	case *core.PersistentVolume:
		protect(&o.ObjectMeta, volumeProtection)
	case *core.PersistentVolumeClaim:
		protect(&o.ObjectMeta, claimProtection)
	case *corestorage.VolumeAttributesClass:
		protect(&o.ObjectMeta, classProtection)
	}
	return nil
}

func protect(o *metav1.ObjectMeta, finalizer string) {
	if !slices.Contains(o.Finalizers, finalizer) {
		o.Finalizers = append(o.Finalizers, finalizer)
	}
}

var (
	_ admission.MutationInterface = (*classDefault)(nil)
	_ admission.MutationInterface = inUse{}
)
