package v1alpha1

import (
	"errors"
	"fmt"
	"path/filepath"
)

// file is an option with the path of a file; empty means none.
type file struct {
	option string
	path   *string
}

func (s *Server) files() []file {
	all := []file{
		{"scheduler-config", &s.SchedulerConfig},
		{"admission-control-config-file", &s.AdmissionConfig},
		{"audit-policy-file", &s.AuditPolicyFile},
		{"audit-webhook-config-file", &s.AuditWebhookConfig},
		{"authentication-config", &s.AuthenticationConfig},
		{"authorization-config", &s.AuthorizationConfig},
		{"authentication-token-webhook-config-file", &s.TokenWebhook},
		{"oidc-ca-file", &s.OIDCCAFile},
		{"requestheader-client-ca-file", &s.RequestHeaderCA},
		{"service-account-signing-key-file", &s.AccountSigningKey},
		{"encryption-provider-config", &s.EncryptionConfig},
		{"nats-context", &s.NATSContext},
		{"message-tracing-config", &s.MessageTracing},
	}
	if s.AuditLogPath != StandardOutput {
		all = append(all, file{"audit-log-path", &s.AuditLogPath})
	}
	for i := range s.AccountKeys {
		all = append(all, file{"service-account-key-file", &s.AccountKeys[i]})
	}
	return all
}

// Absolute makes relative paths of files absolute, from the working directory.
func (s *Server) Absolute() error {
	for _, f := range s.files() {
		if *f.path == "" {
			continue
		}
		path, err := filepath.Abs(*f.path)
		if err != nil {
			return fmt.Errorf("%s: %w", f.option, err)
		}
		*f.path = path
	}
	return nil
}

func (s *Server) validateFiles() error {
	var errs []error
	for _, f := range s.files() {
		if *f.path != "" && !filepath.IsAbs(*f.path) {
			errs = append(errs, fmt.Errorf("%s %q must be an absolute path", f.option, *f.path))
		}
	}
	return errors.Join(errs...)
}
