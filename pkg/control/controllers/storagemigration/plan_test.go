package storagemigration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func migration(name string, age time.Duration,
	conditions ...storagemigrationv1.MigrationConditionType) storagemigrationv1.StorageVersionMigration {
	m := storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			UID:               types.UID(name),
			CreationTimestamp: metav1.NewTime(time.Unix(1000, 0).Add(-age)),
		},
	}
	m.Spec.Resource = metav1.GroupResource{Group: "example.org", Resource: "boats"}
	for _, c := range conditions {
		set(&m, c, metav1.ConditionTrue, "R", "")
	}
	return m
}

func TestPlan(t *testing.T) {
	const run, ok, bad = storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationSucceeded,
		storagemigrationv1.MigrationFailed
	other := migration("other", time.Hour, run)
	other.Spec.Resource.Resource = "ships"
	for name, c := range map[string]struct {
		m      storagemigrationv1.StorageVersionMigration
		others []storagemigrationv1.StorageVersionMigration
		want   Turn
	}{
		"alone": {m: migration("a", 0), want: Start},
		"of another resource": {
			m: migration("a", 0), others: []storagemigrationv1.StorageVersionMigration{other}, want: Start,
		},
		"after an older one": {
			m: migration("a", 0), others: []storagemigrationv1.StorageVersionMigration{migration("b", time.Minute)}, want: Wait,
		},
		"before a younger one": {
			m: migration("a", time.Minute), others: []storagemigrationv1.StorageVersionMigration{migration("b", 0)}, want: Start,
		},
		"of the same age, by name": {
			m: migration("b", 0), others: []storagemigrationv1.StorageVersionMigration{migration("a", 0)}, want: Wait,
		},
		"while a younger one runs": {
			m: migration("a", time.Minute), others: []storagemigrationv1.StorageVersionMigration{migration("b", 0, run)},
			want: Wait,
		},
		"after one that ended": {
			m: migration("a", 0), others: []storagemigrationv1.StorageVersionMigration{migration("b", time.Minute, ok)},
			want: Start,
		},
		"while one has to be finished": {
			m: migration("a", 0), others: []storagemigrationv1.StorageVersionMigration{migration("b", time.Minute, run, bad)},
			want: Wait,
		},
		"running":                       {m: migration("a", 0, run), want: Migrate},
		"succeeded, not finished":       {m: migration("a", 0, run, ok), want: Finish},
		"failed, not finished":          {m: migration("a", 0, run, bad), want: Finish},
		"ended":                         {m: migration("a", 0, ok), want: Nothing},
		"failed before it began to run": {m: migration("a", 0, bad), want: Nothing},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, Plan(&c.m, append(c.others, c.m)))
		})
	}
}

func TestStoredVersionsAreForgottenOnlyAfterSuccess(t *testing.T) {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
	crd.Status.StoredVersions = []string{"v1", "v2"}
	crd.Status = begun(crd, "m")
	require.Len(t, crd.Status.Conditions, 1)
	require.Equal(t, []string{"v1", "v2"}, done(crd, false).StoredVersions)
	require.Equal(t, []string{"v2"}, done(crd, true).StoredVersions)
	crd.Generation++
	status := done(crd, true)
	require.Equal(t, []string{"v1", "v2"}, status.StoredVersions, "another version may be stored by now")
	require.Len(t, status.Conditions, 1)
	require.Contains(t, status.Conditions[0].Message, "generation mismatch")
}
