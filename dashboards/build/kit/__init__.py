"""The parts that boards are made of; `common` names what a board uses of them."""
