package provider

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kubelet/config/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/kubelet/pkg/apis/credentialprovider/v1alpha1"
	"k8s.io/kubelet/pkg/apis/credentialprovider/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	maxFile      = 1 << 20 // bytes
	maxFiles     = 64      // per directory
	maxProviders = 64
)

// configVersions are supported versions of CredentialProviderConfig; their fields are a subset of v1's.
var configVersions = []string{
	"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1",
}

// pluginVersions are supported versions of the plugin protocol; their fields are a subset of v1's.
var pluginVersions = []string{
	apiv1.SchemeGroupVersion.String(), v1beta1.SchemeGroupVersion.String(), v1alpha1.SchemeGroupVersion.String(),
}

// read reads the providers of a file, or of all files in a directory by name. The hash is computed like the
// kubelet's, for its metric.
func read(path string) (providers []configv1.CredentialProvider, hash string, err error) {
	files := []string{path}
	info, err := os.Stat(path)
	if err != nil {
		return nil, "", err
	}
	if info.IsDir() {
		if files, err = list(path); err != nil {
			return nil, "", err
		}
	}
	sum := sha256.New()
	for _, file := range files {
		data, err := bounded.Configured(file, maxFile)
		if err != nil {
			return nil, "", err
		}
		_ = binary.Write(sum, binary.BigEndian, uint64(len(data))) // hashes do not fail
		sum.Write(data)
		var c configv1.CredentialProviderConfig
		if err := yaml.UnmarshalStrict(data, &c); err != nil {
			return nil, "", fmt.Errorf("%s: %w", file, err)
		}
		switch {
		case c.Kind != "CredentialProviderConfig" || !slices.Contains(configVersions, c.APIVersion):
			return nil, "", fmt.Errorf("%s: kind %q of %q is not CredentialProviderConfig of %s", file, c.Kind, c.APIVersion,
				configVersions[0])
		case c.APIVersion != configVersions[0] &&
			slices.ContainsFunc(c.Providers, func(p configv1.CredentialProvider) bool { return p.TokenAttributes != nil }):
			return nil, "", fmt.Errorf("%s: %s has no tokenAttributes, %s has", file, c.APIVersion, configVersions[0])
		}
		providers = append(providers, c.Providers...)
	}
	if errs := validate(providers); len(errs) > 0 {
		return nil, "", fmt.Errorf("%s: %w", path, errs.ToAggregate())
	}
	return providers, fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

func list(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".json" || ext == ".yaml" || ext == ".yml") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	switch {
	case len(files) == 0:
		return nil, fmt.Errorf("%s has no file whose name ends in .json, .yaml or .yml", dir)
	case len(files) > maxFiles:
		return nil, fmt.Errorf("%s has %d files, at most %d are read", dir, len(files), maxFiles)
	}
	return files, nil
}

func validate(providers []configv1.CredentialProvider) (errs field.ErrorList) {
	all := field.NewPath("providers")
	switch {
	case len(providers) == 0:
		errs = append(errs, field.Required(all, "at least one is needed"))
	case len(providers) > maxProviders:
		return field.ErrorList{field.TooMany(all, len(providers), maxProviders)}
	}
	names := map[string]bool{}
	for i := range providers {
		p, at := &providers[i], all.Index(i)
		if names[p.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names[p.Name] = true
		if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ ") {
			errs = append(errs, field.Invalid(at.Child("name"), p.Name, "it is the name of a program in the folder of plugins"))
		}
		if !slices.Contains(pluginVersions, p.APIVersion) {
			errs = append(errs, field.NotSupported(at.Child("apiVersion"), p.APIVersion, pluginVersions))
		}
		if len(p.MatchImages) == 0 {
			errs = append(errs, field.Required(at.Child("matchImages"), "at least one is needed"))
		}
		for _, pattern := range p.MatchImages {
			if u, err := url.Parse("https://" + pattern); err != nil || u.Host == "" || strings.Contains(pattern, "://") {
				errs = append(errs,
					field.Invalid(at.Child("matchImages"), pattern, "it is a host with an optional port and path, without a scheme"))
			}
		}
		if p.DefaultCacheDuration == nil {
			errs = append(errs, field.Required(at.Child("defaultCacheDuration"), ""))
		} else if p.DefaultCacheDuration.Duration < 0 {
			errs = append(errs,
				field.Invalid(at.Child("defaultCacheDuration"), p.DefaultCacheDuration.Duration.String(), "it is negative"))
		}
		if p.TokenAttributes != nil {
			errs = append(errs, validateToken(p, at.Child("tokenAttributes"))...)
		}
	}
	return errs
}

func validateToken(p *configv1.CredentialProvider, at *field.Path) (errs field.ErrorList) {
	t := p.TokenAttributes
	if p.APIVersion != pluginVersions[0] {
		errs = append(errs, field.Forbidden(at, "tokens are only sent in "+pluginVersions[0]))
	}
	if t.ServiceAccountTokenAudience == "" {
		errs = append(errs, field.Required(at.Child("serviceAccountTokenAudience"), ""))
	}
	types := []configv1.ServiceAccountTokenCacheType{
		configv1.ServiceAccountServiceAccountTokenCacheType, configv1.TokenServiceAccountTokenCacheType,
	}
	if !slices.Contains(types, t.CacheType) {
		errs = append(errs, field.NotSupported(at.Child("cacheType"), t.CacheType, types))
	}
	if t.RequireServiceAccount == nil {
		errs = append(errs, field.Required(at.Child("requireServiceAccount"), ""))
	} else if !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		errs = append(errs,
			field.Forbidden(at.Child("requiredServiceAccountAnnotationKeys"),
				"a pod without a service account, which requireServiceAccount allows, has none"))
	}
	seen := map[string]bool{}
	for name, keys := range map[string][]string{
		"requiredServiceAccountAnnotationKeys": t.RequiredServiceAccountAnnotationKeys,
		"optionalServiceAccountAnnotationKeys": t.OptionalServiceAccountAnnotationKeys,
	} {
		for _, key := range keys {
			if seen[key] {
				errs = append(errs, field.Duplicate(at.Child(name), key))
			}
			seen[key] = true
			for _, why := range validation.IsQualifiedName(strings.ToLower(key)) {
				errs = append(errs, field.Invalid(at.Child(name), key, why))
			}
		}
	}
	return errs
}

func program(dir, name string) (string, error) {
	path, err := exec.LookPath(filepath.Join(dir, name))
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is no program %s in %s", name, dir)
	}
	return path, err
}
