.DEFAULT_GOAL := help
PYTHON ?= python3
HOSTS ?= 2

lab-up: ## Bring up real hosts to test on: HOSTS=2 (root, a Docker Engine)
	$(PYTHON) tests/lab/lab.py up --hosts $(HOSTS)

lab-down: ## Remove every trace of them
	$(PYTHON) tests/lab/lab.py down
