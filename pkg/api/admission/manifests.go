package admission

import (
	"fmt"
	"os"
	"path/filepath"

	registration "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/initializer"
	policies "k8s.io/kubernetes/pkg/admission/plugin/policy/manifest/loader"
	webhooks "k8s.io/kubernetes/pkg/admission/plugin/webhook/manifest/loader"
)

// Limits of a manifest directory of webhooks or policies. All of its files are read after each change, and every
// minute.
const (
	maxManifests     = 1000
	maxManifestBytes = 8 << 20
)

// manifestLoaders returns upstream's loaders of webhooks and policies from files (KEP-5793), with limits, which
// upstream lacks.
func manifestLoaders() *initializer.ManifestLoaders {
	return &initializer.ManifestLoaders{
		LoadValidatingWebhookManifests: func(dir string) ([]*registration.ValidatingWebhookConfiguration, string, error) {
			found, err := within(dir, webhooks.LoadValidatingManifests)
			if err != nil {
				return nil, "", err
			}
			return found.Configurations, found.Hash, nil
		},
		LoadMutatingWebhookManifests: func(dir string) ([]*registration.MutatingWebhookConfiguration, string, error) {
			found, err := within(dir, webhooks.LoadMutatingManifests)
			if err != nil {
				return nil, "", err
			}
			return found.Configurations, found.Hash, nil
		},
		LoadValidatingPolicyManifests: func(dir string) ([]*registration.ValidatingAdmissionPolicy,
			[]*registration.ValidatingAdmissionPolicyBinding, string, error) {
			found, err := within(dir, policies.LoadValidatingManifestsFromDirectory)
			if err != nil {
				return nil, nil, "", err
			}
			return found.Policies, found.Bindings, found.Hash, nil
		},
		LoadMutatingPolicyManifests: func(dir string) ([]*registration.MutatingAdmissionPolicy,
			[]*registration.MutatingAdmissionPolicyBinding, string, error) {
			found, err := within(dir, policies.LoadMutatingManifestsFromDirectory)
			if err != nil {
				return nil, nil, "", err
			}
			return found.Policies, found.Bindings, found.Hash, nil
		},
	}
}

// within loads a directory if it is within the limits.
func within[T any](dir string, load func(string) (T, error)) (found T, err error) {
	if err := checkManifests(dir); err != nil {
		return found, err
	}
	return load(dir)
}

// checkManifests refuses a directory that exceeds the limits or contains anything but files and directories: reading
// a pipe could block forever.
func checkManifests(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(maxManifests + 1)
	_ = d.Close()
	if len(names) > maxManifests {
		return fmt.Errorf("%s has more than %d files", dir, maxManifests)
	}
	if len(names) == 0 { // io.EOF: the directory is empty
		return nil
	}
	if err != nil {
		return err
	}
	var total int64
	for _, name := range names {
		// Follow symlinks: the administrator configured the directory, and a mounted ConfigMap has them.
		f, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if !f.Mode().IsRegular() && !f.IsDir() {
			return fmt.Errorf("%s is not a regular file", filepath.Join(dir, name))
		}
		if total += f.Size(); total > maxManifestBytes {
			return fmt.Errorf("the files of %s have more than %d bytes", dir, maxManifestBytes)
		}
	}
	return nil
}
