package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/apis/storage"
)

func smallClaim(name, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			},
		},
	}
}

func storageClass(name string, standard, grows bool) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: name},
		Provisioner:          "example.com/p",
		AllowVolumeExpansion: &grows,
	}
	if standard {
		c.Annotations = map[string]string{storage.DefaultAnnotation: "true"}
	}
	return c
}

func TestClaimsGetTheDefaultClassAndProtection(t *testing.T) {
	h := secured(t, Plugins{})
	class := at(storagev1.SchemeGroupVersion.WithKind("StorageClass"), "", "")
	before := put(h, v1("PersistentVolumeClaim", ""), smallClaim("before", "1Gi"))
	require.Nil(t, before.Spec.StorageClassName, "there is no default class")
	require.Equal(t, []string{claimProtection}, before.Finalizers)

	put(h, class, storageClass("other", false, false))
	put(h, class, storageClass("a", true, false))
	put(h, class, storageClass("b", true, false))
	c := put(h, v1("PersistentVolumeClaim", ""), smallClaim("c", "1Gi"))
	require.Contains(t, []string{"a", "b"}, *c.Spec.StorageClassName)
	none := smallClaim("none", "1Gi")
	none.Spec.StorageClassName = new("")
	require.Empty(t, *put(h, v1("PersistentVolumeClaim", ""), none).Spec.StorageClassName, "a claim may ask for no class")

	volume := put(h, at(corev1.SchemeGroupVersion.WithKind("PersistentVolume"), "", ""), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: none.Spec.AccessModes,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
	})
	require.Equal(t, []string{volumeProtection}, volume.Finalizers)

	attributes := put(h, at(storagev1.SchemeGroupVersion.WithKind("VolumeAttributesClass"), "", ""),
		&storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "example.com/p",
			Parameters: map[string]string{"iops": "100"}})
	require.Equal(t, []string{classProtection}, attributes.Finalizers)
}

// The newest default class is used. If two were created in the same second, it is the first by name.
func TestTheNewestDefaultClassWins(t *testing.T) {
	at := func(name string, second int64, standard bool) *storagev1.StorageClass {
		c := storageClass(name, standard, false)
		c.CreationTimestamp = metav1.Unix(second, 0)
		return c
	}
	require.Nil(t, storage.Default(nil))
	require.Nil(t, storage.Default([]*storagev1.StorageClass{at("a", 1, false)}))
	require.Equal(t, "c",
		storage.Default([]*storagev1.StorageClass{
			at("a", 1, true), at("d", 2, true), at("c", 2, true), at("e", 3, false),
		}).Name)
}

func TestClaimsWithBadSizesAreRefused(t *testing.T) {
	h := secured(t, Plugins{})
	for size, wrong := range map[string]string{"-1": "must be greater than zero", "0": "must be greater than zero"} {
		requireStatus(t, h.try(v1("PersistentVolumeClaim", ""), smallClaim("c", size)), 422, wrong)
	}
	require.NoError(t, h.try(v1("PersistentVolumeClaim", ""), smallClaim("huge", "8Ei")))
}
