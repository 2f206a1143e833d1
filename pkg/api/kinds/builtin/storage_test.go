package builtin

import (
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheDefaultClassIsMarked(t *testing.T) {
	r := Kinds().ByGVK(storagev1.SchemeGroupVersion.WithKind("StorageClass"))
	for name, annotations := range map[string]map[string]string{
		"c": nil, "c (default)": {"storageclass.kubernetes.io/is-default-class": "true"},
	} {
		in, err := r.Internal(&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Annotations: annotations}, Provisioner: "x/y",
		})
		require.NoError(t, err)
		table, err := r.Table.ConvertToTable(t.Context(), in, nil)
		require.NoError(t, err)
		require.Equal(t, name, table.Rows[0].Cells[0])
	}
}
