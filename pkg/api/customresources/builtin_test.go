package customresources

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// A definition of a built-in kind is refused in its status, even if an earlier version served it. The kind does not
// change, and its objects outlive the definition.
func TestDefinitionOfBuiltinKind(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.namespace("default")
	const path, name = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots",
		"volumesnapshots.snapshot.storage.k8s.io"
	const good = "{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: s}, spec: {source: " +
		"{persistentVolumeClaimName: c}}}"
	made := w.do("POST", path, good)
	require.Equal(t, http.StatusCreated, made.code, made.body)
	definition := strings.NewReplacer("metadata: {name: widgets.example.org}",
		`metadata: {name: `+name+`, annotations: {api-approved.kubernetes.io: "https://example.org"}}`, "example.org",
		"snapshot.storage.k8s.io", "widgets", "volumesnapshots",
		"singular: widget", "singular: volumesnapshot", "Widget", "VolumeSnapshot", "shortNames: [wd]",
		"shortNames: [vs]").Replace(widgets)
	defined := w.do("POST", definitionsPath, definition)
	require.Equal(t, http.StatusCreated, defined.code, defined.body)
	refused := func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		c := apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted)
		return c != nil && c.Status == apiextensionsv1.ConditionFalse &&
			c.Message ==
				`"VolumeSnapshotList" is already in use` && !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	}
	w.wait(name, refused)

	// Give it the status that an earlier version wrote.
	require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := w.client.Get(t.Context(), ctrl.ObjectKey{Name: name}, &crd); err != nil {
			return err
		}
		established := crd.DeepCopy()
		establish(established)
		return w.client.Status().Update(t.Context(), established)
	}))
	w.wait(name, refused)
	bad := w.do("POST", path,
		strings.NewReplacer("name: s}", "name: bad}", "persistentVolumeClaimName: c", "").Replace(good))
	require.Equal(t, http.StatusUnprocessableEntity, bad.code, bad.body)
	require.Contains(t, bad.message(t), "exactly one of")

	require.Equal(t, http.StatusOK, w.do("DELETE", definitionsPath+"/"+name, "").code)
	w.wait(name, func(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd == nil })
	require.Equal(t, http.StatusOK, w.do("GET", path+"/s", "").code)
}

// establish gives a definition the status of a served one.
func establish(crd *apiextensionsv1.CustomResourceDefinition) {
	crd.Status.AcceptedNames = crd.Spec.Names
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type:   apiextensionsv1.NamesAccepted,
		Status: apiextensionsv1.ConditionTrue,
		Reason: "NoConflicts",
	})
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type:   apiextensionsv1.Established,
		Status: apiextensionsv1.ConditionTrue,
		Reason: "InitialNamesAccepted",
	})
}
