package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// timeout limits a run of a plugin, as in the kubelet.
	timeout = time.Minute
	// endTimeout is how long to wait for child processes that keep the plugin's output open after it has exited.
	endTimeout = time.Second
	maxOutput  = 1 << 20 // bytes
	maxErrors  = 1 << 10 // bytes of standard error in messages
)

// execute runs the plugin with a request on standard input, and returns the response on its standard output.
func (one *plugin) execute(ctx context.Context,
	request *apiv1.CredentialProviderRequest) (*apiv1.CredentialProviderResponse, error) {
	request.TypeMeta = metav1.TypeMeta{APIVersion: one.APIVersion, Kind: "CredentialProviderRequest"}
	input, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, said := bounded.NewBuffer(maxOutput+1), bounded.NewBuffer(maxErrors)
	program := exec.CommandContext(ctx, one.path, one.Args...)
	program.Stdin, program.Stdout, program.Stderr = bytes.NewReader(input), out, said
	program.Env = one.environment(os.Environ())
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	program.Cancel = func() error { return syscall.Kill(-program.Process.Pid, syscall.SIGKILL) }
	program.WaitDelay = endTimeout
	err = program.Run()
	if program.Process != nil { // kill remaining child processes
		_ = program.Cancel()
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the plugin was killed: %w", ctx.Err())
	case len(out.Bytes()) > maxOutput:
		return nil, fmt.Errorf("the plugin wrote more than %d bytes", maxOutput)
	case err != nil:
		return nil, fmt.Errorf("the plugin failed: %w: %s", err,
			bounded.Text(strings.TrimSpace(string(said.Bytes())), maxErrors))
	}
	var response apiv1.CredentialProviderResponse
	if err := json.Unmarshal(out.Bytes(), &response); err != nil {
		// The error may contain a credential.
		return nil, errors.New("the plugin did not write a CredentialProviderResponse in JSON")
	}
	if response.APIVersion != one.APIVersion || response.Kind != "CredentialProviderResponse" {
		return nil, fmt.Errorf("the plugin wrote a %.60q of %.60q instead of a CredentialProviderResponse of %s",
			response.Kind, response.APIVersion, one.APIVersion)
	}
	return &response, nil
}

// environment returns the plugin's environment: this process's without CORACLE_ options, which may contain the join
// token, and the variables of the plugin's configuration.
func (one *plugin) environment(own []string) (env []string) {
	for _, v := range own {
		if !strings.HasPrefix(v, "CORACLE_") {
			env = append(env, v)
		}
	}
	for _, v := range one.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}
