package volumesnapshot

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	helpers "k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
)

// take requests a snapshot from the driver of the claim's volume. It first protects the claim, and then creates
// the content.
func (s State) take(now time.Time) Step {
	v, claim := s.Snapshot, s.Claim
	failed := func(why string) Step {
		return s.failed(now, "SnapshotContentCreationFailed", "Failed to create snapshot content with error "+why)
	}
	class := s.class()
	if class == nil {
		return s.failed(now, "GetSnapshotClassFailed",
			fmt.Sprintf("Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io %q not found",
				*v.Spec.VolumeSnapshotClassName))
	}
	switch {
	case claim == nil:
		return failed(fmt.Sprintf("persistentvolumeclaim %q not found", *v.Spec.Source.PersistentVolumeClaimName))
	case s.Volume == nil || claim.Status.Phase != corev1.ClaimBound || s.Volume.Spec.ClaimRef == nil ||
		s.Volume.Spec.ClaimRef.UID != claim.UID:
		return failed(fmt.Sprintf("the PVC %s is not yet bound to a PV, will not attempt to take a snapshot", claim.Name))
	}
	driver, handle := driverOf(s.Volume)
	switch {
	case driver == "":
		return failed(fmt.Sprintf("snapshots are taken of volumes of CSI drivers and of those that %s provisions, which %q "+
			"is not", storage.Provisioner, s.Volume.Name))
	case driver != class.Driver:
		return failed(fmt.Sprintf("the class %q is for the driver %q, and the claim's volume is of %q", class.Name,
			class.Driver, driver))
	case !controllerutil.ContainsFinalizer(claim, snapshots.ClaimFinalizer) && claim.DeletionTimestamp != nil:
		return failed(fmt.Sprintf("cannot take a snapshot of persistentvolumeclaim %q, which is being deleted", claim.Name))
	}
	content := &snapshots.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: ContentName(v.UID), Finalizers: []string{snapshots.ContentFinalizer}},
		Spec: snapshots.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				APIVersion:      snapshots.GroupVersion.String(),
				Kind:            "VolumeSnapshot",
				Namespace:       v.Namespace,
				Name:            v.Name,
				UID:             v.UID,
				ResourceVersion: v.ResourceVersion,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeSnapshotClassName: &class.Name,
			Source: snapshots.VolumeSnapshotContentSource{VolumeHandle: &handle}, SourceVolumeMode: s.Volume.Spec.VolumeMode,
		},
	}
	if why := snapshotSecret.write(&content.ObjectMeta, class.Name, class.Parameters, v); why != "" {
		return failed(why)
	}
	if !controllerutil.ContainsFinalizer(claim, snapshots.ClaimFinalizer) {
		return updateClaim(claim, func(c *corev1.PersistentVolumeClaim) {
			controllerutil.AddFinalizer(c, snapshots.ClaimFinalizer)
		})
	}
	return Step{Op: CreateContent, Content: content}.because(v, corev1.EventTypeNormal, "CreatingSnapshot",
		fmt.Sprintf("Waiting for a snapshot %s/%s to be created by the CSI driver.", v.Namespace, v.Name))
}

// driverOf returns a volume's driver and its handle, or "" for a volume without snapshot support.
func driverOf(v *corev1.PersistentVolume) (driver, handle string) {
	switch {
	case v.Spec.CSI != nil:
		return v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle
	case v.Spec.Local != nil && v.Annotations[helpers.AnnDynamicallyProvisioned] == storage.Provisioner:
		return storage.Provisioner, v.Name
	}
	return "", ""
}

func (s State) class() *snapshots.VolumeSnapshotClass {
	i := slices.IndexFunc(s.Classes, func(c *snapshots.VolumeSnapshotClass) bool {
		return c.Name == *s.Snapshot.Spec.VolumeSnapshotClassName
	})
	if i < 0 {
		return nil
	}
	return s.Classes[i]
}

// defaultClass sets the default class of a dynamically provisioned snapshot that names none.
func (s State) defaultClass(now time.Time) Step {
	v := s.Snapshot
	if v.Spec.VolumeSnapshotClassName != nil || v.Spec.Source.PersistentVolumeClaimName == nil || s.Content != nil ||
		inGroup(v) {
		return Step{}
	}
	failed := func(why string) Step {
		return s.failed(now, "SetDefaultSnapshotClassFailed", "Failed to set default snapshot class with error "+why)
	}
	switch {
	case s.Claim == nil:
		return failed(fmt.Sprintf("persistentvolumeclaim %q not found", *v.Spec.Source.PersistentVolumeClaimName))
	case s.Volume == nil:
		return failed(fmt.Sprintf("the PVC %s is not yet bound to a PV, will not attempt to take a snapshot", s.Claim.Name))
	}
	driver, _ := driverOf(s.Volume)
	class, why := theDefault(s.Classes, func(c *snapshots.VolumeSnapshotClass) bool {
		return c.Driver == driver && c.Annotations[snapshots.DefaultAnnotation] == "true"
	}, driver, "snapshot class")
	if why != "" {
		return failed(why)
	}
	return updateSnapshot(v, func(v *snapshots.VolumeSnapshot) { v.Spec.VolumeSnapshotClassName = &class })
}

// theDefault returns the name of a driver's only default class, or why there is not exactly one.
func theDefault[C client.Object](classes []C, isDefault func(C) bool, driver, kind string) (name, why string) {
	var found []string
	for _, c := range classes {
		if isDefault(c) {
			found = append(found, c.GetName())
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Sprintf("cannot find default %s of the driver %q", kind, driver)
	case 1:
		return found[0], ""
	}
	slices.Sort(found)
	return "", fmt.Sprintf("%d default %ses were found: %s", len(found), kind, strings.Join(found, ", "))
}

// secretNames are the class parameters that name the Secret for the driver, and the content annotations that
// record it for the deletion.
type secretNames struct{ name, namespace, nameAnnotation, namespaceAnnotation, kind string }

var (
	snapshotSecret = secretNames{
		snapshots.SecretNameParameter, snapshots.SecretNamespaceParameter, snapshots.SecretNameAnnotation,
		snapshots.SecretNamespaceAnnotation, "volumesnapshot",
	}
	groupSecret = secretNames{
		snapshots.GroupSecretNameParameter, snapshots.GroupSecretNamespaceParameter, snapshots.GroupSecretNameAnnotation,
		snapshots.GroupSecretNamespaceAnnotation, "volumegroupsnapshot",
	}
)

// write records the Secret of a content's class in annotations of the content. The driver gets the Secret again
// for the deletion. It returns why the class does not name a Secret, or "".
func (s secretNames) write(content *metav1.ObjectMeta, class string, parameters map[string]string,
	of client.Object) string {
	name, named := parameters[s.name]
	namespace, spaced := parameters[s.namespace]
	switch {
	case !named && !spaced:
		return ""
	case named != spaced:
		return fmt.Sprintf("the class %q must have both of the parameters %s and %s", class, s.name, s.namespace)
	}
	known := map[string]string{s.kind + "content.name": content.Name, s.kind + ".namespace": of.GetNamespace()}
	namespace, why := expand(namespace, known)
	if why == "" {
		known[s.kind+".name"] = of.GetName()
		name, why = expand(name, known)
	}
	switch {
	case why != "":
	case len(validation.IsDNS1123Label(namespace)) > 0:
		why = fmt.Sprintf("%q is not a valid namespace name", namespace)
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		why = fmt.Sprintf("%q is not a valid Secret name", name)
	}
	if why != "" {
		return fmt.Sprintf("the class %q names no Secret: %s", class, why)
	}
	metav1.SetMetaDataAnnotation(content, s.nameAnnotation, name)
	metav1.SetMetaDataAnnotation(content, s.namespaceAnnotation, namespace)
	return ""
}

// expand replaces ${NAME} in a template. why is set if a name is unknown or the result is empty.
func expand(template string, known map[string]string) (out, why string) {
	out = os.Expand(template, func(name string) string {
		value, ok := known[name]
		if !ok {
			why = fmt.Sprintf("%q has no value in %q", name, template)
		}
		return value
	})
	if why == "" && out == "" {
		why = "it is empty"
	}
	return out, why
}
