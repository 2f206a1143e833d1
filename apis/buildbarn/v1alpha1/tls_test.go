package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestNamesOfCertificates checks that DNS names and IP addresses are valid, and an address with a zone is not.
func TestNamesOfCertificates(t *testing.T) {
	errs := func(name string) field.ErrorList {
		return validateFarmTLS(&FarmTLS{Clients: ClientsAnyone, LifetimeHours: 1, Names: []string{name}},
			field.NewPath("spec"))
	}
	for _, good := range []string{"farm.example", "*.farm.example", "192.0.2.1", "fe80::1"} {
		require.Empty(t, errs(good), good)
	}
	for _, bad := range []string{"fe80::1%eth0", "a_b", ""} {
		require.Len(t, errs(bad), 1, bad)
	}
}
